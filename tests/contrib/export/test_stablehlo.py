"""StableHLO files with gradients, read by jax alone."""

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from jax import export

from flaxformer_lite import ConfigError
from flaxformer_lite.contrib.export.cases import pad_texts
from flaxformer_lite.contrib.export.programs import programs_of
from flaxformer_lite.contrib.export.stablehlo import open_stablehlo, write_differentiable
from tests.models.tiny import built, small

ROWS = [[3, 4, 5, 6, 7], [8, 9]]


def test_a_file_has_the_gradient_of_the_model(tmp_path):
    model, params = built(small("bert", 1))
    (program,) = programs_of(model)
    file = tmp_path / "model.stablehlo"
    write_differentiable(file, program, params)
    inputs = pad_texts(program, ROWS)
    called = export.deserialize(bytearray(file.read_bytes())).call
    with np.load(tmp_path / "params.npz") as arrays:
        weights = dict(arrays)

    def loss(logits):
        return (logits**2).mean()

    theirs = jax.jit(jax.grad(lambda weights: loss(called(weights, inputs)["logits"])))(weights)
    ours = jax.jit(jax.grad(lambda params: loss(program.function(params, inputs)["logits"])))(
        params
    )
    ours = flatten_dict(ours, sep="/")
    assert theirs.keys() == ours.keys()
    for name, x in ours.items():
        np.testing.assert_allclose(theirs[name], x, atol=1e-6, err_msg=name)
    assert max(np.abs(x).max() for x in theirs.values()) > 1e-3
    assert open_stablehlo(file)(inputs)["logits"].shape == (2, 5, model.cfg.vocab_size)
    (tmp_path / "params.npz").write_bytes(b"PK\x03\x04 and no more")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"params\.npz: has no weights"):
            open_stablehlo(file)
        (tmp_path / "params.npz").unlink(missing_ok=True)
