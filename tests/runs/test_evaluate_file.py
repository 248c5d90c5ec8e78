"""Runs on text, applied to another text."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

import flaxformer_lite
from flaxformer_lite.config import ConfigError, TokenizerConfig
from flaxformer_lite.config.mixture import SourceConfig
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.objectives.text.text_objective import unigram_loss
from flaxformer_lite.runs.evaluate_file import open_file, open_trained
from flaxformer_lite.text import tokenizer
from tests.pretrained.fixtures import ROOT
from tests.training import tiny_runs


@pytest.mark.nightly
def test_another_text_is_read_by_the_tokenizer_of_the_run(tmp_path):
    cfg = tiny_runs.config(tmp_path, train={"steps": 10, "eval_every": 10, "checkpoint_every": 10})
    words = TokenizerConfig(name="byte_bpe", vocab_size=400)
    cfg = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, tokenizer=words))
    flaxformer_lite.run(cfg, tmp_path / "run")
    (tmp_path / "other.jsonl").write_bytes(
        Path(cfg.data.path).read_bytes()[:9000].rpartition(b"\n")[0]
    )
    trained = open_trained(tmp_path / "run")
    data = open_file(trained, str(tmp_path / "other.jsonl"))
    assert data.tokenizer.fingerprint == tokenizer.load(tmp_path / "run" / "tokenizer").fingerprint
    metrics, _ = trained.evaluate(data)
    assert metrics["nll"] < 5, "a tokenizer of its own gives ids that mean nothing to the model"
    train = open_dataset(cfg)
    counts = train.objective.fit_baseline(train)["counts"]
    want = ("unigram baseline", pytest.approx(unigram_loss(data, counts)))
    assert trained.baseline(data) == want, "of the text that the run was trained on"
    assert trained._replace(fitted=None).baseline(data) is None
    with pytest.raises(ConfigError, match=r"baseline\.json: does not fit .* delete it"):
        trained._replace(fitted={"counts": [1, 2]}).baseline(data)
    own = (tmp_path / "other.jsonl").read_text()
    (tmp_path / "body.jsonl").write_text(own.replace('"text":', '"body":'))
    said = r"no text under 'text' \(keys: .*'body'\); set the field, --columns=text=body\."
    with pytest.raises(ConfigError, match=said):
        open_file(trained, str(tmp_path / "body.jsonl"))
    sources = {
        name: SourceConfig(path=cfg.data.path, text_field="body") for name in ("web", "code")
    }
    fields = {"columns": "text=body"}, {"path": "", "mixture": sources}
    for found in (
        dataclasses.replace(trained.cfg, data=dataclasses.replace(trained.cfg.data, **own))
        for own in fields
    ):
        again = open_file(trained._replace(cfg=found), str(tmp_path / "body.jsonl"))
        assert again.num_examples == data.num_examples


def test_a_published_classifier_that_reads_an_end_token_which_no_text_has_is_refused(tmp_path):
    """Its logits would not be numbers."""
    model = shutil.copytree(ROOT / "bart_sequence_classification", tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    for source, name in {"roberta.json": "vocab.json", "roberta.txt": "merges.txt"}.items():
        shutil.copy(ROOT / "older_tokenizers" / source, model / name)
    (model / "config.json").write_text(json.dumps(config | {"eos_token_id": 2}))
    assert open_trained(model).model.cfg.eos_token_id == 2
    (model / "config.json").write_text(json.dumps(config | {"eos_token_id": 3}))
    message = r"eos_token_id=3, where .* a bart reads, .* with 2; set eos_token_id=2, or mend"
    with pytest.raises(ConfigError, match=message):
        open_trained(model)
