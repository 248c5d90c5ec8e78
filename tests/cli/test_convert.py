import dataclasses
import json
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

import flaxformer_lite
from flaxformer_lite import load_pretrained, load_tokenizer
from flaxformer_lite.__main__ import main
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.checkpoints.digest import digest
from flaxformer_lite.config import TokenizerConfig
from tests.cli import models
from tests.marks import daily
from tests.training import tiny_runs

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module", params=daily(["bert", "t5"], ["t5"]))
def run(request, tmp_path_factory):
    """A workdir after four steps."""
    folder = tmp_path_factory.mktemp(request.param)
    train = {"steps": 4, "eval_every": 4, "checkpoint_every": 2, "sample_tokens": 0}
    cfg = tiny_runs.config(folder, request.param, train=train)
    if request.param == "bert":
        tokenizer = TokenizerConfig(name="byte_bpe", vocab_size=400)
        cfg = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, tokenizer=tokenizer))
    flaxformer_lite.run(cfg, folder / "run")
    return folder / "run"


def checksum(capsys, folder):
    capsys.readouterr()
    main(["inspect", str(folder)])
    return re.search(r"^sha256 +([0-9a-f]{64})$", capsys.readouterr().out, re.M)[1]


def test_a_run_becomes_published_weights_and_computes_the_same(run, tmp_path, capsys):
    before = sorted((p, p.stat().st_mtime_ns) for p in run.rglob("*"))
    main(["convert", str(run), str(tmp_path / "out")])
    stored = workdir.read_run(run)
    assert stored.step == 4
    assert f"{stored.cfg.model.family}, head {stored.cfg.model.head}" in capsys.readouterr().out
    model, params = load_pretrained(tmp_path / "out")
    ids = jnp.asarray([[7, 8, 9, 10]])
    inputs = {"input_ids": ids} | (
        {"decoder_input_ids": ids} if model.skeleton == "encoder_decoder" else {}
    )
    ours = jax.jit(stored.model.apply)({"params": stored.params}, **inputs)
    read = jax.jit(model.apply)({"params": params}, **inputs)
    jax.tree.map(np.testing.assert_array_equal, ours, read)
    assert checksum(capsys, run) == checksum(capsys, tmp_path / "out")
    assert sorted((p, p.stat().st_mtime_ns) for p in run.rglob("*")) == before, (
        "the run is left as it was"
    )


def test_a_run_is_found_by_a_relative_path(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(run.parent)
    main(["convert", run.name, str(tmp_path / "out")])
    assert checksum(capsys, run.name) == checksum(capsys, tmp_path / "out")


def test_a_runs_tokenizer_frames_texts_as_training_did(run, tmp_path, capsys):
    main(["convert", str(run), str(tmp_path / "out"), "--dtype", "bfloat16"])
    if "t5" in str(run):
        said = json.loads((tmp_path / "out/generation_config.json").read_text())
        assert said == {
            "bos_token_id": 2,
            "decoder_start_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 0,
        }
        assert json.loads((tmp_path / "out/config.json").read_text())["decoder_start_token_id"] == 0
        assert load_tokenizer(tmp_path / "out").encode("a")[-1] == 1
        return
    tokenizer = load_tokenizer(tmp_path / "out")
    ids = tokenizer.encode("three [MASK]")
    assert ids[0] == tokenizer.ids["cls"]
    assert ids[-1] == tokenizer.ids["sep"]
    assert ids[-2] == tokenizer.ids["mask"]
    assert tokenizer.max_length == 32 and tokenizer.tokens["pad"] == "[PAD]"
    assert ids[1:-2] == tokenizer.encode("three", special_tokens=False), (
        "a hidden word takes its space along"
    )
    pair = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json")).encode("one", "two")
    assert pair.type_ids[-1] == 1
    assert pair.tokens.count("[SEP]") == 2
    assert pair.tokens.count("[CLS]") == 1
    assert load_pretrained(tmp_path / "out", dtype="bfloat16")[0].cfg.head == "pretraining"
    main(["fill-mask", "--model", str(run), "three [MASK] five", "--top_k", "2"])
    guesses = capsys.readouterr().out.splitlines()[1:]
    assert len(guesses) == 2
    main(["convert", str(run), str(tmp_path / "exact")])
    main(["fill-mask", "--model", str(tmp_path / "exact"), "three [MASK] five", "--top_k", "2"])
    assert capsys.readouterr().out.splitlines()[1:] == guesses


def test_a_damaged_checkpoint_is_passed_over_and_named(run, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for file in (copy / "checkpoints/4/state").rglob("d/*"):
        file.write_bytes(b"x" * 50)
    main(["convert", str(copy), str(tmp_path / "out")])
    assert "notice: checkpoint of step 4 cannot be read" in capsys.readouterr().err
    assert digest(workdir.read_run(copy).params) != digest(workdir.read_run(run).params)
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(SystemExit) as ended:
        main(["convert", str(copy), str(tmp_path / "other")])
    assert ended.value.code == 1 and "no checkpoint yet" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gpt2_lm", "t5_conditional_generation"])
def test_msgpack_becomes_the_same_safetensors(name, tmp_path, capsys):
    for file in (FIXTURES / name).iterdir():
        if "safetensors" not in file.name:
            (tmp_path / "old").mkdir(exist_ok=True)
            shutil.copyfile(file, tmp_path / "old" / file.name)
    main(["convert", str(tmp_path / "old"), str(tmp_path / "new")])
    assert {p.name for p in (tmp_path / "new").iterdir()} >= {"config.json", "model.safetensors"}
    assert checksum(capsys, tmp_path / "new") == checksum(capsys, FIXTURES / name)


def test_float16_is_widened_and_that_is_said(tmp_path, capsys):
    main(["convert", str(FIXTURES / "electra_masked_lm"), str(tmp_path / "out")])
    said = capsys.readouterr()
    assert "holds float16: written as float32" in said.err and "in float32" in said.out


def test_shards_dtype_and_companions(tmp_path, capsys):
    folder = models.directory(
        tmp_path / "bert", "bert", "masked_lm", generation_config={"pad_token_id": 0}
    )
    main(
        [
            "convert",
            str(folder),
            str(tmp_path / "out"),
            "--dtype",
            "bfloat16",
            "--shard_size",
            "10KB",
        ]
    )
    main(["convert", str(tmp_path / "out"), str(tmp_path / "again")])
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    assert (tmp_path / "again/tokenizer.json").read_bytes() == (
        folder / "tokenizer.json"
    ).read_bytes()
    assert json.loads((tmp_path / "again/generation_config.json").read_text()) == {
        "pad_token_id": 0
    }
    assert "in bfloat16" in capsys.readouterr().out.splitlines()[-1], "kept as it was"
    _, ours = load_pretrained(folder)
    _, theirs = load_pretrained(tmp_path / "again", dtype="bfloat16")
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a.astype(jnp.bfloat16), b), ours, theirs
    )


def test_nothing_is_left_of_a_conversion_that_failed(tmp_path, capsys):
    folder = models.directory(tmp_path / "gpt2")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-10])
    with pytest.raises(SystemExit) as ended:
        main(["convert", str(folder), str(tmp_path / "out")])
    assert ended.value.code == 2 and "truncated" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["gpt2"]
