"""The stored reference checkpoints are whole, finite and small; tools/make_fixtures.py writes
them."""

import json
from pathlib import Path

import numpy as np
import pytest

FIXTURES = Path(__file__).parents[1] / "fixtures"
OTHERS = {"adapters", "chat", "framing", "heads", "older_tokenizers", "sentences", "static"}
ROWS = json.loads((FIXTURES / "manifest.json").read_text())["fixtures"]


def test_manifest_names_every_directory():
    assert set(ROWS) | OTHERS == {path.name for path in FIXTURES.iterdir() if path.is_dir()}


def test_fixtures_stay_small():
    assert sum(path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file()) < 4_000_000


@pytest.mark.parametrize("name", ROWS)
def test_fixture_holds_what_its_row_says(name):
    row = ROWS[name]
    config = json.loads((FIXTURES / name / "config.json").read_text())
    assert config["architectures"] == [row["architecture"]]
    with np.load(FIXTURES / name / "expected.npz") as stored:
        arrays = {key: stored[key] for key in stored.files}
    for case in row["cases"]:
        assert f"{case}/in/input_ids" in arrays
        assert any(key.startswith(f"{case}/out/") for key in arrays)
    for way, settings in row.get("generate", {}).items():
        rows = len(arrays["generate/in/input_ids"]) * settings.get("num_return_sequences", 1)
        assert len(arrays[f"generate/{way}/sequences"]) == rows
    assert row["grads"] == any(key.startswith("grads/") for key in arrays)
    assert all(np.isfinite(value).all() for value in arrays.values())
