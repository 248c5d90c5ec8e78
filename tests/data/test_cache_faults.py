"""What may happen to a cache while it is written: one sentence each, nothing half-built is left,
and the next start works."""

import errno
import fcntl
import resource
from pathlib import Path

import pytest

from flaxformer_lite.config import ConfigError, DataConfig, ExperimentConfig, TokenizerConfig
from flaxformer_lite.data import row_files, rows as rows_of_tables
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.models import bert, gpt2
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from tests.objectives.tables import write_rows


@pytest.fixture(params=["text", "table"])
def cfg(request, tmp_path, monkeypatch):
    """A text or a task on a table, whose rows are kept in files."""
    monkeypatch.setattr(rows_of_tables, "SMALL_BYTES", 0)
    rows = [{"text": f"{n} bottles " * 9, "label": "ab"[n % 2]} for n in range(300)]
    data = DataConfig(
        path=write_rows(tmp_path / "rows.jsonl", rows),
        cache=str(tmp_path / "cache"),
        tokenizer=TokenizerConfig(name="bytes"),
        length=64,
    )
    if request.param == "text":
        return ExperimentConfig(model=gpt2.config("tiny"), objective=CausalLm(), data=data)
    model = bert.config("tiny", vocab_size=0, head="sequence_classification")
    return ExperimentConfig(model=model, objective=Classification(), data=data)


def left_in(cfg):
    """What is left besides complete folders."""
    folders = Path(cfg.data.cache).glob("*")
    return [path.name for path in folders if not (path / "complete.json").is_file()]


def test_a_full_disk_is_one_sentence(cfg):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"^data\.cache=.*: cannot write there .* free some"):
            open_dataset(cfg)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert left_in(cfg) == []
    assert open_dataset(cfg).num_examples > 200


def test_a_file_system_without_locks_serves(cfg, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    due = open_dataset(cfg)
    assert open_dataset(cfg).fingerprint == due.fingerprint and left_in(cfg) == []


def test_a_file_that_changes_while_it_is_read_is_refused(cfg, monkeypatch):
    read = row_files.read_rows

    def read_and_change(path, *args):
        yield from read(path, *args)
        with path.open("a") as file:
            file.write('{"text": "one more", "label": "a"}\n')

    monkeypatch.setattr(row_files, "read_rows", read_and_change)
    with pytest.raises(ConfigError, match=r"rows\.jsonl has changed since it was opened; start"):
        open_dataset(cfg)
    assert left_in(cfg) == []
    monkeypatch.setattr(row_files, "read_rows", read)
    assert open_dataset(cfg).num_examples > 200


def test_a_file_that_has_changed_between_two_starts_is_read_anew(cfg, tmp_path):
    before = open_dataset(cfg)
    more = [{"text": f"{n} more " * 99, "label": "ab"[n % 2]} for n in range(300)]
    write_rows(tmp_path / "rows.jsonl", more)
    after = open_dataset(cfg)
    assert after.fingerprint != before.fingerprint and left_in(cfg) == []
    assert "more" in after.tokenizer.decode(after.records.pieces(0)[0]["ids"])
