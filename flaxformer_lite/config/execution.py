"""The execution record: how a model runs. No field of it changes what the weights mean."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

from flaxformer_lite.config import choices
from flaxformer_lite.config.rules import ConfigError, OneOf, Plugin, Probability, Record

Dtype = Annotated[str, OneOf(choices.DTYPES)]
Remat = Annotated[str, OneOf(choices.REMATS)]
Implementation = Annotated[str, Plugin("attentions", ("auto",))]
DropoutSlots = tuple[Annotated[str, OneOf(choices.DROPOUT_SLOTS)], ...]


@dataclass(frozen=True, kw_only=True)
class Execution(Record):
    """Precision, memory, dropout and the implementation of attention.

    Any value fits the same weights.

    The slots of `dropout_at`: `embed` after the embeddings, `attention` on its weights, `mlp`
    inside the feed-forward layer, `branch` on each layer's output before the residual is added,
    `final` after the last block.
    """

    dropout: Probability = 0.0
    dropout_at: DropoutSlots = ("embed", "attention", "branch")
    # a file in flaxformer_lite/nn/attentions, module:attend, or auto
    attention: Implementation = "auto"
    dtype: Dtype = "float32"  # of activations and matmuls
    param_dtype: Dtype = "float32"
    # numbers that the layers' matrices multiply in training; float is `dtype`
    matmul: Annotated[str, OneOf(choices.MATMULS)] = "float"
    # how the layers' matrices are held where they are not trained: to generate, or under an adapter
    quantize: Annotated[str, OneOf(choices.QUANTIZATIONS)] = "none"
    # numbers that keys and values are kept in while generating; float is `dtype`
    cache: Annotated[str, OneOf(choices.CACHES)] = "float"
    scan: bool = False  # one traced layer instead of a Python loop: compile time flat in depth
    # What the backward pass recomputes: none of it, all but matmul outputs (dots), all but the
    # residual stream (full), or all but the named results: of attention, the rotated queries, keys
    # and values, the output projection, the MLP's inputs.
    remat: Remat = "none"

    def __post_init__(self) -> None:
        # jnp.bfloat16 and np.dtype("float32") are accepted as well as their names.
        for name in ("dtype", "param_dtype"):
            if not isinstance(getattr(self, name), str):
                object.__setattr__(self, name, _name_of(name, getattr(self, name)))
        super().__post_init__()
        if self.matmul != "float" and self.quantize not in ("none", self.matmul):
            raise ConfigError(
                f"matmul={self.matmul!r}, quantize={self.quantize!r}: matrices that are held in"
                " these bits are multiplied as floats; set matmul=float, or both to int8."
            )


EXECUTION_FIELDS = tuple(f.name for f in fields(Execution))


def _name_of(field: str, dtype: Any) -> str:
    import numpy as np  # imported here, so that --help does not wait for numpy

    try:
        return np.dtype(dtype).name
    except TypeError:
        raise ConfigError(
            f"{field}={dtype!r}: must be a dtype or its name, float32 or bfloat16."
        ) from None
