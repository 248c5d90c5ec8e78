"""Which implementation a call gets where the config says auto and the devices have kernels of their own."""

import functools
import inspect
import logging
from collections.abc import Callable

import jax

from flaxformer_lite import registry

LOG = logging.getLogger("flaxformer_lite")
FUSED = {"tpu": ("splash", "relative")}  # the first that does not refuse is taken
SMALL = 128  # positions up to which a kernel's padding costs more than it saves


def attend(platform: str, otherwise: str) -> Callable:
    """An attend function that takes the platform's first kernel that can do a call, else the implementation `otherwise`."""
    return functools.partial(_attend, FUSED.get(platform, ()), otherwise)


def _attend(names: tuple[str, ...], otherwise: str, q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, **options):
    reasons = []
    if max(q_BTNH.shape[1], k_BSKH.shape[1]) <= SMALL:
        names, reasons = (), [f"at most {SMALL} positions"]
    for name in names:
        module = registry.resolve("attentions", name)
        asked = inspect.signature(module.refuses).parameters
        reason = module.refuses(q_BTNH, k_BSKH, v_BSKH, **{key: value for key, value in options.items() if key in asked})
        if not reason:
            _say(f"attention: {name}")
            return module.attend(q_BTNH, k_BSKH, v_BSKH, **options)
        reasons.append(f"not {name}, {reason}")
    _say(f"attention: {otherwise} ({'; '.join(reasons)})")
    return registry.resolve("attentions", otherwise).attend(q_BTNH, k_BSKH, v_BSKH, **options)


@functools.cache
def _say(line: str) -> None:
    """Each choice once, however many layers make it."""
    LOG.info(line)
