import argparse
import logging
import signal

import pytest

from flaxformer_lite.cli import launch, train


@pytest.fixture
def handlers():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore:the load_module")  # of ml_collections
def test_libraries_may_log_again_after_a_run(handlers, monkeypatch, tmp_path):
    root = logging.getLogger()
    during = []
    before = root.level
    monkeypatch.setattr(launch, "main", lambda *_, **__: during.append(root.level))
    joining = dict.fromkeys(train.GIVEN)
    train.run(
        argparse.Namespace(workdir=str(tmp_path), overrides=["--config=gpt2_tiny"], **joining)
    )
    assert during == [logging.CRITICAL] and root.level == before <= logging.WARNING
