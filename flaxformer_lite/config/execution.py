"""The execution record: how a model runs. No field of it changes what the weights mean."""

from dataclasses import dataclass, field, fields
from typing import Any

from flaxformer_lite.config import choices
from flaxformer_lite.config.rules import ConfigError, all_among, among


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Precision, memory, dropout and the implementation of attention; the same weights fit any value.

    The slots of `dropout_at`: `embed` after the embeddings, `attention` on its weights, `mlp` inside the feed-forward
    layer, `branch` on each layer's output before the residual is added, `final` after the last block.
    """

    dropout: float = 0.0
    dropout_at: tuple[str, ...] = ("embed", "attention", "branch")
    attention: str = "auto"  # a file in flaxformer_lite/attentions, module:attend, or auto
    dtype: str = "float32"  # of activations and matmuls
    param_dtype: str = "float32"
    scan: bool = False  # one traced layer instead of a Python loop: compile time flat in depth
    remat: str = "none"  # none, dots (keep matmul outputs) or full (keep only the residual stream)
    # Where activations live (functions/sharding.py); set by the trainer, never by a config page.
    sharding: Any = field(default=None, metadata={"internal": True}, repr=False)

    def __post_init__(self) -> None:
        for name in ("dtype", "param_dtype"):  # jnp.bfloat16 and np.dtype("float32") work as well as their names
            if not isinstance(getattr(self, name), str):
                object.__setattr__(self, name, _name_of(name, getattr(self, name)))
        all_among(self, "dropout_at", choices.DROPOUT_SLOTS)
        among(self, "remat", choices.REMATS)
        among(self, "dtype", choices.DTYPES)
        among(self, "param_dtype", choices.DTYPES)
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout={self.dropout}: must be a probability in [0, 1).")


EXECUTION_FIELDS = tuple(f.name for f in fields(Execution) if "internal" not in f.metadata)


def _name_of(field: str, dtype: Any) -> str:
    import numpy as np  # imported here, so that --help does not wait for numpy

    try:
        return np.dtype(dtype).name
    except TypeError:
        raise ConfigError(f"{field}={dtype!r}: must be a dtype or its name, float32 or bfloat16.") from None
