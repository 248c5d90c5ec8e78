"""Counts XLA compilations: a training loop that still compiles after its second step is losing its time."""

import functools

import jax

EVENT = "/jax/core/compile/backend_compile_duration"


def total() -> int:
    """Compilations of this process since the first call of this function."""
    return _counter()[0]


@functools.cache
def _counter() -> list[int]:
    count = [0]

    def listen(event: str, *_args, **_kwargs) -> None:
        count[0] += event == EVENT

    jax.monitoring.register_event_duration_secs_listener(listen)
    return count
