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


def convert(*args):
    main(["convert", *map(str, args)])


def checksum(capsys, folder):
    capsys.readouterr()
    main(["inspect", str(folder)])
    return re.search(r"^sha256 +([0-9a-f]{64})$", capsys.readouterr().out, re.M)[1]


def assert_equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_a_run_becomes_published_weights_and_computes_the_same(run, tmp_path, capsys, monkeypatch):
    before = sorted((p, p.stat().st_mtime_ns) for p in run.rglob("*"))
    monkeypatch.chdir(run.parent)
    convert(run.name, tmp_path / "out")
    stored = workdir.read_run(run)
    assert stored.step == 4
    assert f"{stored.cfg.model.family}, head {stored.cfg.model.head}" in capsys.readouterr().out
    model, params = load_pretrained(tmp_path / "out")
    ids = jnp.asarray([[7, 8, 9, 10]])
    inputs = {"input_ids": ids}
    if model.skeleton == "encoder_decoder":
        inputs["decoder_input_ids"] = ids
    ours = jax.jit(stored.model.apply)({"params": stored.params}, **inputs)
    assert_equal(ours, jax.jit(model.apply)({"params": params}, **inputs))
    assert checksum(capsys, run.name) == checksum(capsys, tmp_path / "out")
    assert sorted((p, p.stat().st_mtime_ns) for p in run.rglob("*")) == before, "left as it was"


def test_a_runs_tokenizer_frames_texts_as_training_did(run, tmp_path, capsys):
    convert(run, tmp_path / "out", "--dtype", "bfloat16")
    if "t5" in str(run):
        said = json.loads((tmp_path / "out/generation_config.json").read_text())
        ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
        assert said == ids | {"decoder_start_token_id": 0}
        assert json.loads((tmp_path / "out/config.json").read_text())["decoder_start_token_id"] == 0
        assert load_tokenizer(tmp_path / "out").encode("a")[-1] == 1
        return
    tokenizer = load_tokenizer(tmp_path / "out")
    first, *inner, mask, last = tokenizer.encode("three [MASK]")
    assert [first, mask, last] == [tokenizer.ids[name] for name in ("cls", "mask", "sep")]
    assert tokenizer.max_length == 32 and tokenizer.tokens["pad"] == "[PAD]"
    # a hidden word takes its space along
    assert inner == tokenizer.encode("three", special_tokens=False)
    pair = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json")).encode("one", "two")
    assert pair.type_ids[-1] == 1
    assert [pair.tokens.count(name) for name in ("[CLS]", "[SEP]")] == [1, 2]
    assert load_pretrained(tmp_path / "out", dtype="bfloat16")[0].cfg.head == "pretraining"
    convert(run, tmp_path / "exact")
    guesses = []
    for folder in (run, tmp_path / "exact"):
        capsys.readouterr()
        main(["generate", "--model", str(folder), "--prompt", "three [MASK] five", "--top_k", "2"])
        guesses.append(capsys.readouterr().out.splitlines())
    assert guesses[0] == guesses[1] and len(guesses[0]) == 2


def test_a_damaged_checkpoint_is_passed_over_and_named(run, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "run")
    for file in (copy / "checkpoints/4/state").rglob("d/*"):
        file.write_bytes(b"x" * 50)
    convert(copy, tmp_path / "out")
    assert "notice: checkpoint of step 4 cannot be read" in capsys.readouterr().err
    assert digest(workdir.read_run(copy).params) != digest(workdir.read_run(run).params)
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(SystemExit, match="1"):
        convert(copy, tmp_path / "other")
    assert "no checkpoint yet" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gpt2_lm", "t5_conditional_generation"])
def test_msgpack_becomes_the_same_safetensors(name, tmp_path, capsys):
    ignored = shutil.ignore_patterns("*safetensors*")
    convert(shutil.copytree(FIXTURES / name, tmp_path / "old", ignore=ignored), tmp_path / "new")
    assert {p.name for p in (tmp_path / "new").iterdir()} >= {"config.json", "model.safetensors"}
    assert checksum(capsys, tmp_path / "new") == checksum(capsys, FIXTURES / name)


def test_float16_is_widened_and_that_is_said(tmp_path, capsys):
    convert(FIXTURES / "electra_masked_lm", tmp_path / "out")
    said = capsys.readouterr()
    assert "holds float16: written as float32" in said.err and "in float32" in said.out


def test_dtype_and_companions(tmp_path, capsys):
    settings = {"pad_token_id": 0}
    folder = models.directory(tmp_path / "bert", "bert", "masked_lm", generation_config=settings)
    convert(folder, tmp_path / "out", "--dtype", "bfloat16")
    again = tmp_path / "again"
    convert(tmp_path / "out", again)
    assert (again / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert json.loads((again / "generation_config.json").read_text()) == settings
    assert "in bfloat16" in capsys.readouterr().out.splitlines()[-1], "kept as it was"
    ours = jax.tree.map(lambda x: x.astype(jnp.bfloat16), load_pretrained(folder)[1])
    assert_equal(ours, load_pretrained(again, dtype="bfloat16")[1])


def test_nothing_is_left_of_a_conversion_that_failed(tmp_path, capsys):
    folder = models.directory(tmp_path / "gpt2")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-10])
    with pytest.raises(SystemExit, match="2"):
        convert(folder, tmp_path / "out")
    assert "truncated" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["gpt2"]


@pytest.mark.nightly
def test_every_path_may_lead_through_the_folder_above(tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    (tmp_path / "data").mkdir()
    cfg = tiny_runs.config(tmp_path / "data", train={"steps": 1, "sample_tokens": 0})
    monkeypatch.chdir(tmp_path / "here")
    data = dataclasses.replace(cfg.data, path="../data/text.jsonl", cache="../data/cache")
    cfg = dataclasses.replace(cfg, data=data)
    above = Path("../runs/rel")
    flaxformer_lite.run(cfg, above)
    flaxformer_lite.run(tiny_runs.steps(cfg, 2), above)
    assert workdir.read_run(above).step == 2
    flaxformer_lite.run(tiny_runs.steps(cfg, 1, init_from="../runs/rel"), Path("../runs/other"))
    convert(above, "../out/weights")
    written = []
    for folder in (str(above), "../out/weights"):
        main(["generate", "--model", folder, "--prompt", "The ", "--max_new_tokens", "2"])
        written.append(capsys.readouterr().out.splitlines()[-1])
    assert written[0] == written[1]
