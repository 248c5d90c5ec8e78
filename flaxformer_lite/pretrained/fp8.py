"""Tensors in blocks of FP8, which are dequantized as they are read.

A matrix W [outputs, inputs] lies in a file as `W`, float8_e4m3fn, and `W_scale_inv`, a factor for
each block of 128 x 128; blocks at the edges may be smaller.

Reference: DeepSeek-AI 2024, DeepSeek-V3 (arXiv:2412.19437), section 3.3.2.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

BLOCK = 128
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
SCALES = "_scale_inv"
FLOATS = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16))


@dataclass(frozen=True)
class Fp8Tensor(Tensor):
    """A matrix [O, I]; `array` holds its numbers before they are scaled."""

    scales: np.ndarray  # [O / 128, I / 128], rounded up

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32)

    def read(self, slices: tuple[slice, ...] = ()) -> np.ndarray:
        """Dequantizes a slice."""
        outputs, inputs = slices + (slice(None),) * (2 - len(slices))
        numbers_OI = self.array[outputs, inputs].astype(np.float32)
        row_O = np.arange(self.shape[0])[outputs] // BLOCK
        column_I = np.arange(self.shape[1])[inputs] // BLOCK
        return numbers_OI * self.scales.astype(np.float32)[np.ix_(row_O, column_I)]


def with_dequantized(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Joins each matrix in FP8 with its scales to one, under its name.

    Raises:
      WeightsError: a tensor in FP8 without scales, scales of another shape or dtype, or scales that
        are not finite.
    """
    joined = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.dtype != FP8:
            continue
        scales = joined.pop(name + SCALES, None)
        if scales is None or scales.dtype not in FLOATS:
            raise WeightsError(
                f"{name}: FP8 needs {name}{SCALES} in float32 or bfloat16 beside it."
            )
        blocks = tuple(-(-size // BLOCK) for size in tensor.shape)
        if len(blocks) != 2 or scales.shape != blocks:
            raise WeightsError(
                f"{name} has shape {list(tensor.shape)}, {name}{SCALES} {list(scales.shape)}: FP8"
                f" is a matrix, and a factor for each block of {BLOCK} x {BLOCK}."
            )
        if not np.isfinite(scales.array.astype(np.float32)).all():
            raise WeightsError(f"{name}{SCALES}: has factors that are not finite.")
        joined[name] = Fp8Tensor(tensor.array, scales.array)
    return joined
