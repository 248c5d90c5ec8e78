"""Maps operations of a compiled step to the parts of a model."""

import re

PHASES = (("rematted_computation", "recomputed"), ("transpose(", "backward"))
# The first that fits: a norm of attention's input or of its queries is a norm.
PARTS = (
    (r"norm", "norms"),
    (r"attention\.project/|attention/(query|key|value|out)\b", "attention projections"),
    (r"attention", "attention"),
    (r"/mlp/", "feed-forward"),
    (r"embed", "embeddings"),
    (r"Model", "rest of the model"),
    (r"jvp", "vocabulary and loss"),
)


def part(source: str) -> str:
    """Names the part of a model that an operation belongs to, by its JAX name.

    `jit(step)/transpose(jvp(Model.features))/.../mlp/up` is `feed-forward, backward`.
    """
    phase = next((name for mark, name in PHASES if mark in source), "forward")
    name = next((name for pattern, name in PARTS if re.search(pattern, source)), "")
    if name == "vocabulary and loss" or not name:
        return name or "optimizer and the rest"
    return f"{name}, {phase}"
