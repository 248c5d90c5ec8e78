import dataclasses
import hashlib
import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import flaxformer_lite
from flaxformer_lite.__main__ import main
from flaxformer_lite.cli.inspect import about
from flaxformer_lite.config import LayerKind
from flaxformer_lite.nn.adapters.lora import LoraConfig
from tests.cli import models
from tests.models.tiny import small
from tests.training import tiny_runs


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return models.directory(tmp_path_factory.mktemp("gpt2"))


def shown(capsys, *args):
    main(["inspect", *map(str, args)])
    return capsys.readouterr().out


def test_what_a_directory_holds(gpt2, capsys):
    said = shown(capsys, gpt2)
    tensors = load_file(gpt2 / "model.safetensors")
    sizes = "2 decoder layers, width 16, 2 heads of 8, mlp 32"
    assert re.search(rf"family +gpt2\nhead +lm\nsizes +{sizes}", said)
    name = r"transformer\.h\.\{0-1\}\.attn\.c_attn\.weight"
    assert re.search(rf"{name} +16 x 48 +float32 +2 times +6,144\n", said)
    numbers = sum(x.size for x in tensors.values())
    assert f"{len(tensors)} tensors, {numbers:,} numbers, {4 * numbers:,} bytes" in said
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} float32 {list(tensors[name].shape)}\n".encode())
        digest.update(tensors[name].tobytes())
    assert f"sha256       {digest.hexdigest()}\n" in said
    every = shown(capsys, gpt2, "--all")
    assert all(name in every for name in tensors) and "{" not in every


def test_heads_of_each_kind_of_layer():
    wide = LayerKind(window=4, num_heads=4, num_kv_heads=2, head_dim=16)
    cfg = small("gpt2", decoder_layers=3, pattern=(wide, LayerKind()))
    sizes = f"4 heads of 16 (2 for keys and values), {cfg.num_heads} heads of {cfg.head_width}"
    assert f"3 decoder layers, width {cfg.d_model}, {sizes}, mlp" in about(cfg)["sizes"]
    t5 = small("t5", encoder_layers=1, decoder_layers=1, head_dim=8, decoder_num_heads=1)
    assert f"{t5.num_heads} heads of 8, 1 head of 8, " in about(t5)["sizes"]


def test_one_bit_changes_the_checksum(gpt2, tmp_path, capsys):
    def checksum(folder):
        return shown(capsys, folder).splitlines()[-1]

    copy = models.directory(tmp_path / "copy")
    before = checksum(copy)
    content = bytearray((copy / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "model.safetensors").write_bytes(content)
    assert checksum(gpt2) == before != checksum(copy)


def test_a_family_that_we_lack_is_still_shown(gpt2, tmp_path, capsys):
    copy = models.directory(tmp_path / "copy")
    (copy / "config.json").write_text('{"model_type": "mamba"}')
    said = shown(capsys, copy)
    assert "not supported" in said and "model_type='mamba'" in said and "c_attn" in said
    assert np.isin(said.splitlines()[-1], shown(capsys, gpt2).splitlines())


def test_numbers_in_names_and_at_their_end_are_folded_and_braces_are_shown(tmp_path, capsys):
    tensors = {f"h.{i}.{{}}.w": np.zeros(2) for i in (0, 1, 10)}
    tensors |= {f"a.b.{number}": np.zeros(0, np.float32) for number in range(30)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    said = shown(capsys, tmp_path)
    assert re.search(r"h\.\{0-10\}\.\{\}\.w +2 +float64 +3 times", said)
    assert re.search(r"a\.b\.\{0-29\} +0 +float32 +30 times +0\n", said)


@pytest.mark.nightly
def test_a_run_with_an_adapter(tmp_path, capsys):
    cfg = tiny_runs.config(tmp_path, train={"steps": 1})
    model = dataclasses.replace(cfg.model, adapter=LoraConfig(rank=2))
    flaxformer_lite.run(dataclasses.replace(cfg, model=model), tmp_path / "run")
    capsys.readouterr()
    said = shown(capsys, tmp_path / "run")
    assert "attn.c_attn.weight" in said and "lora_a" in said


def test_a_closed_stdout():
    command = f"{sys.executable} -m flaxformer_lite --version >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
