"""Programs that runs share."""

import functools

import pytest

from flaxformer_lite.runs import run as runs
from flaxformer_lite.runs.start import setup


@pytest.fixture(scope="module")
def prepared_once():
    """Lets runs of one config share their traced steps, as a step is traced anew at each start in
    tests/runs/test_loop.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "prepare_experiment", functools.cache(setup.prepare_experiment))
        yield
