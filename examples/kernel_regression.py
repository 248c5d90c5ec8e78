"""Kernel regression is attention: noisy points fitted by weighted means, with the weights as heat
maps.

    python examples/kernel_regression.py docs/kernel_regression.png

Nadaraya-Watson regression predicts the mean of all values, weighted by a kernel of the distance
from query to key. Its one parameter is the kernel's width. Here it is learned by gradient descent:
the loss of a width is the error on each point when it is predicted from the others. The last column
does the same by `flaxformer_lite.attend`: with the points on an arc, keys have length one, the
softmax of dot products equals the Gaussian kernel, and the width is the softmax's temperature.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flaxformer_lite import attend, kernel_weights, pool
from flaxformer_lite.nn.functions.kernels import boxcar, epanechnikov, gaussian

Kernel = Callable[[jax.Array], jax.Array]
KERNELS: dict[str, Kernel] = {
    "constant": jnp.ones_like,
    "boxcar": boxcar,
    "Gaussian": gaussian,
    "Epanechnikov": epanechnikov,
}
# no gradient reaches the width of a boxcar, and a constant has none
LEARNED = (
    "Gaussian",
    "Epanechnikov",
)
FIXED = 1.0
END = 6.0
NOISE = 0.4


class Points(NamedTuple):
    """Features of places on the line, and their values; the last axis of the features is the width
    of a head."""

    features_TH: jax.Array
    values_T: jax.Array


class Fit(NamedTuple):
    """A kernel on some features, with its predictions and weights at the places of a test."""

    name: str
    width: float
    left_out: float  # mean squared error on each point from the others
    error: float  # to the curve without noise
    curve_T: jax.Array
    weights_TS: jax.Array

    @property
    def shown_width(self) -> str:
        return "" if self.name == "constant" else f"{self.width:.2f}"


def truth(x: jax.Array) -> jax.Array:
    return jnp.sin(2 * x) + x / 3


def line(x_T: jax.Array) -> jax.Array:
    return x_T[:, None]


def arc(x_T: jax.Array) -> jax.Array:
    """Places the line on half a circle of radius one."""
    angle_T = x_T * jnp.pi / END
    return jnp.stack([jnp.cos(angle_T), jnp.sin(angle_T)], axis=-1)


def weights(queries_TH: jax.Array, keys_SH: jax.Array, **options: object) -> jax.Array:
    """Returns [T, S]: one example and one head of the package's `kernel_weights`."""
    return kernel_weights(queries_TH[None, :, None], keys_SH[None, :, None], **options)[0, 0]


def mean(weights_TS: jax.Array, values_S: jax.Array) -> jax.Array:
    return pool(weights_TS[None, None], values_S[None, :, None, None])[0, :, 0, 0]


def left_out_loss(width: jax.Array | float, kernel: Kernel, points: Points) -> jax.Array:
    """Computes the mean squared error on each point when the others predict it."""
    x_TH, y_T = points
    others_BTS = ~jnp.eye(len(y_T), dtype=bool)[None]
    predicted_T = mean(
        weights(x_TH, x_TH, kernel=kernel, bandwidth=width, visible_BTS=others_BTS), y_T
    )
    return jnp.mean((predicted_T - y_T) ** 2)


def learn_width(kernel: Kernel, points: Points, *, start: float = FIXED, steps: int = 200) -> float:
    """Minimizes `left_out_loss` over the width, by its logarithm, so that it stays positive."""
    optimizer = optax.adam(0.05)
    log_width = jnp.log(start)

    @jax.jit
    def step(log_width, state):
        slope = jax.grad(lambda log_width: left_out_loss(jnp.exp(log_width), kernel, points))(
            log_width
        )
        update, state = optimizer.update(slope, state)
        return optax.apply_updates(log_width, update), state

    state = optimizer.init(log_width)
    for _ in range(steps):
        log_width, state = step(log_width, state)
    return float(jnp.exp(log_width))


def fit(name: str, kernel: Kernel, width: float, points: Points, test: Points) -> Fit:
    weights_TS = weights(test.features_TH, points.features_TH, kernel=kernel, bandwidth=width)
    curve_T = mean(weights_TS, points.values_T)
    error = float(jnp.mean((curve_T - test.values_T) ** 2))
    return Fit(name, width, float(left_out_loss(width, kernel, points)), error, curve_T, weights_TS)


def attention_gap(width: float, points: Points, test: Points) -> tuple[float, float]:
    """Compares scaled dot-product attention with the Gaussian kernel on keys of length one.

    `exp(-|q - k|^2 / 2 w^2) = exp(q . k / w^2) exp(-1 / w^2)`, and normalization removes the second
    factor.

    Returns:
      The largest differences of weights and of predictions.
    """
    q_TH, _ = test
    k_SH, y_S = points
    q = q_TH[None, :, None]
    k = k_SH[None, :, None]
    weights_TS = weights(q_TH, k_SH, bandwidth=width)
    # identity values show them
    softmax_TS = attend(q, k, jnp.eye(len(y_S))[None, :, None], scale=width**-2)[0, :, 0]
    attended_T = attend(q, k, y_S[None, :, None, None], scale=width**-2)[0, :, 0, 0]
    return float(jnp.abs(softmax_TS - weights_TS).max()), float(
        jnp.abs(attended_T - mean(weights_TS, y_S)).max()
    )


def draw(path: Path, x_S: jax.Array, y_S: jax.Array, x_T: jax.Array, fits: list[Fit]) -> None:
    """Draws a column for each fit: the curve above, below it the weight of each point for each
    place."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.2 * len(fits), 4.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(2, len(fits), sharex=True, sharey="row")
    scale = PowerNorm(0.5, vmin=0, vmax=0.3)  # shows the small weights of wide kernels as well
    for (above, below), one in zip(rows.T, fits, strict=True):
        above.plot(x_S, y_S, "o", color="#8fa8c8", markersize=3, label="noisy points")
        above.plot(x_T, truth(x_T), "--", color="#555555", linewidth=1, label="truth")
        above.plot(x_T, one.curve_T, color="#c44e52", linewidth=1.8, label="fit")
        above.set_title(
            f"{one.name}\n{one.shown_width and f'width {one.shown_width}, '}error {one.error:.3f}",
            fontsize=9,
        )
        shown = below.pcolormesh(
            x_S, x_T, one.weights_TS, cmap="magma", norm=scale, shading="nearest"
        )
        below.set_xlabel("key")
    rows[0, 0].legend(frameon=False, fontsize=8, loc="upper left")
    rows[0, 0].set_ylim(top=4)
    rows[0, 0].set_ylabel("value"), rows[1, 0].set_ylabel("query")
    figure.colorbar(shown, ax=rows[1, -1], label="weight", extend="max")
    figure.savefig(path)


def main(path: Path, steps: int = 200) -> list[Fit]:
    """Fits each kernel, prints a table and draws it."""
    rng = np.random.default_rng(0)
    x_S = jnp.asarray(np.sort(rng.uniform(0, END, 60)))
    y_S = truth(x_S) + NOISE * jnp.asarray(rng.normal(size=60))
    x_T = jnp.linspace(0, END, 200)
    points = Points(line(x_S), y_S)
    test = Points(line(x_T), truth(x_T))
    fits = [fit(name, kernel, FIXED, points, test) for name, kernel in KERNELS.items()]
    for name in LEARNED:
        width = learn_width(KERNELS[name], points, steps=steps)
        fits.append(fit(f"{name}, learned", KERNELS[name], width, points, test))
    points = Points(arc(x_S), y_S)
    test = Points(arc(x_T), truth(x_T))
    width = learn_width(gaussian, points, steps=steps)
    fits.append(fit("attention, learned", gaussian, width, points, test))
    print(
        "| kernel | width | error on left-out points | error to the truth |\n|---|---:|---:|---:|"
    )
    for one in fits:
        print(f"| {one.name} | {one.shown_width} | {one.left_out:.3f} | {one.error:.3f} |")
    print(
        "\nsoftmax of dot products beside the Gaussian kernel: weights differ by {:.1e},"
        " predictions by {:.1e} at most".format(*attention_gap(width, points, test))
    )
    draw(path, x_S, y_S, x_T, fits)
    print(path)
    return fits


if __name__ == "__main__":
    main(Path(*sys.argv[1:] or ["kernel_regression.png"]))
