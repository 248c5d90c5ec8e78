"""Kernel regression: learned widths beat the fixed one, and attention is one of the kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import kernel_regression as example
from flaxformer_lite.nn.functions.kernels import boxcar, gaussian


@pytest.mark.nightly
def test_learned_widths_beat_the_fixed_one(tmp_path, capsys):
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to whole numbers
        fits = {fit.name: fit for fit in example.main(tmp_path / "figure.png", steps=60)}
    for name in example.LEARNED:
        fixed = fits[name]
        learned = fits[f"{name}, learned"]
        assert learned.width != fixed.width
        assert learned.left_out < fixed.left_out and learned.error < fixed.error
    assert fits["constant"].error == max(fit.error for fit in fits.values())
    assert (tmp_path / "figure.png").stat().st_size > 20_000
    table, _, said = capsys.readouterr().out.partition("\n\n")
    assert len(table.splitlines()) == 2 + len(fits)
    assert "differ" in said


def test_a_point_is_left_out_of_its_own_prediction():
    points = example.Points(jnp.arange(3.0)[:, None], jnp.asarray([0.0, 6.0, 3.0]))
    errors = [6.0, 6 - 1.5, 3.0]  # the means of the others within 1: 6, (0 + 3) / 2, 6
    loss = example.left_out_loss(1.0, boxcar, points)
    np.testing.assert_allclose(loss, np.mean(np.square(errors)), rtol=1e-6)


@pytest.mark.parametrize("width", [0.2, 2**0.25])
def test_attention_is_the_gaussian_kernel_on_an_arc_and_not_on_the_line(width):
    x_S = jnp.linspace(0, example.END, 20)
    x_T = jnp.linspace(0.1, example.END, 7)
    gaps = {}
    for place in (example.arc, example.line):
        points, test = (example.Points(place(x), example.truth(x)) for x in (x_S, x_T))
        gaps[place] = example.attention_gap(width, points, test)
    assert max(gaps[example.arc]) < 1e-5 and min(gaps[example.line]) > 0.1


def test_no_gradient_reaches_the_width_of_a_boxcar():
    points = example.Points(jnp.arange(9.0)[:, None], jnp.arange(9.0) ** 2)
    slope = jax.jit(jax.grad(example.left_out_loss), static_argnums=1)
    assert slope(1.5, boxcar, points) == 0 and slope(1.5, gaussian, points) > 0
