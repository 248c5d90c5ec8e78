"""SigLIP's text tower in big_vision's npz, with the numbers of big_vision's own modules.

tools/foreign_big_vision.py stored them; here each array is written into an npz by its name.
"""

import json
import shutil
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import load_pretrained
from flaxformer_lite.__main__ import main
from flaxformer_lite.pretrained.safetensors import WeightsError

STORED = json.loads((Path(__file__).parent / "big_vision.json").read_text())


def values(name, shape):
    """Draws an array from its name, as tools/foreign_big_vision.py does."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return (0.5 * random.standard_normal(shape)).astype(np.float32)


def tower(name):
    return {path: values(path, shape) for path, shape in STORED[name]["arrays"].items()}


def write(folder, arrays, prefix="params/txt"):
    others = {"params/img/embedding/kernel": np.zeros((2, 2)), "params/t": np.zeros(1)}
    np.savez(folder / "siglip.npz", **others, **{f"{prefix}/{k}": x for k, x in arrays.items()})
    return folder


@pytest.mark.parametrize(("name", "prefix"), [("side_by_side", "params/txt"), ("scanned", "txt")])
def test_outputs_are_those_of_big_vision(name, prefix, tmp_path):
    model, params = load_pretrained(write(tmp_path, tower(name), prefix))
    output = jax.jit(model.apply)({"params": params}, jnp.array(STORED["inputs"]))
    for key, expected in STORED[name]["outputs"].items():
        np.testing.assert_allclose(getattr(output, key), np.array(expected), atol=1e-5)


def test_convert_says_what_it_found_and_older_positions_are_added(tmp_path, capsys):
    arrays = tower("side_by_side")
    half = arrays["pos_embedding"] / 2
    arrays |= {"pos_embedding": half, "Encoder_0/pos_embedding": half}
    (tmp_path / "old").mkdir()
    write(tmp_path / "old", arrays)
    main(["convert", str(tmp_path / "old"), str(tmp_path / "new")])
    said = capsys.readouterr().err
    assert "two_towers: siglip_text_model with 2 layers, width 8, 2 heads" in said
    assert 'assumed: pool_type="last"' in said
    _, expected = load_pretrained(write(tmp_path, tower("side_by_side")))
    _, read = load_pretrained(tmp_path / "new")
    jax.tree.map(np.testing.assert_array_equal, read, expected)


def test_two_towers_or_two_programs_in_a_folder_are_refused(tmp_path):
    write(tmp_path, tower("side_by_side"))
    np.savez(tmp_path / "scores.npz", accuracy=np.ones(2))
    load_pretrained(tmp_path)
    shutil.copy(tmp_path / "siglip.npz", tmp_path / "other.npz")
    with pytest.raises(WeightsError, match=r"hold a text tower \(other.npz, siglip.npz\); leave"):
        load_pretrained(tmp_path)
    (tmp_path / "other.npz").unlink()
    (tmp_path / "checkpoint_3").mkdir()
    (tmp_path / "checkpoint_3/checkpoint").write_bytes(b"\x81\xa6target\x80")
    with pytest.raises(WeightsError, match="holds a big_vision npz and a T5X checkpoint; pass a"):
        load_pretrained(tmp_path)


def test_second_positions_of_another_length_are_refused(tmp_path):
    arrays = tower("side_by_side") | {"Encoder_0/pos_embedding": np.zeros((1, 3, 8), "float32")}
    with pytest.raises(WeightsError, match=r"Encoder_0/pos_embedding has the shape \[1, 3, 8\]"):
        load_pretrained(write(tmp_path, arrays))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("MAPHead_0/probe", r"holds txt/MAPHead_0/probe of shape \[1, 1, 8\]; text towers of"),
        ("Encoder_0/encoderblock_0/MlpBlock_0/Dense_0/lora_a", "holds txt/Encoder_0.*lora_a of"),
        ("head/kernel", "txt/head/kernel is 'missing'"),
        ("Encoder_0/encoderblock_1/LayerNorm_0/bias", r"no tensor encoder\.layers\.1\.layer_norm1"),
    ],
)
def test_other_towers_are_refused(path, message, tmp_path):
    arrays = tower("side_by_side")
    if arrays.pop(path, None) is None:
        arrays[path] = np.zeros((1, 1, 8), "float32")
    with pytest.raises(WeightsError, match=message):
        load_pretrained(write(tmp_path, arrays))


def test_a_damaged_array_is_one_sentence(tmp_path):
    path = write(tmp_path, tower("side_by_side")) / "siglip.npz"
    content = bytearray(path.read_bytes())
    at = content.index(b"txt/Embed_0/embedding.npy") + 300
    content[at : at + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(bytes(content))
    with pytest.raises(WeightsError, match=r"Embed_0/embedding.*damaged"):
        jax.device_get(load_pretrained(tmp_path)[1])
