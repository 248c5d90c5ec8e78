"""Tensors in MXFP4, which are dequantized as they are read.

A number has four bits, a sign and one of eight magnitudes; each 32 along an axis of inputs share a
power of two. A tensor W [experts, inputs, outputs] lies in a file as `W_blocks`, uint8 [experts,
outputs, inputs / 32, 16], two numbers a byte, the first in its lower half, and `W_scales`, uint8
[experts, outputs, inputs / 32], exponents that 127 was added to. Each product is exact in bfloat16.

Reference: Open Compute Project, "OCP Microscaling Formats (MX) Specification" 1.0 (2023), section
5.3.1 and table 5.
"""

from dataclasses import dataclass

import numpy as np

from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = np.asarray([*MAGNITUDES, *(-x for x in MAGNITUDES)], np.float32)
BYTES = 16  # of a block
BIAS = 127  # of the exponents
NOT_A_NUMBER = 255  # as an exponent
BLOCKS = "_blocks"
SCALES = "_scales"


@dataclass(frozen=True)
class Mxfp4Tensor(Tensor):
    """A tensor [X, I, O]; `array` holds its blocks [X, O, I / 32, 16]."""

    scales: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        experts, outputs, blocks, width = self.array.shape
        return experts, blocks * width * 2, outputs

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32)

    def read(self, slices: tuple[slice, ...] = ()) -> np.ndarray:
        """Dequantizes the experts and outputs of a slice, and cuts out its inputs."""
        experts, inputs, outputs = slices + (slice(None),) * (3 - len(slices))
        numbers_XOI = dequantize(self.array[experts, outputs], self.scales[experts, outputs])
        return np.ascontiguousarray(numbers_XOI.swapaxes(1, 2)[:, inputs])


def dequantize(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Returns the numbers of blocks [..., blocks, 16] with exponents [..., blocks], float32."""
    pairs = np.stack([VALUES[blocks & 15], VALUES[blocks >> 4]], axis=-1)
    numbers = pairs.reshape(*blocks.shape[:-1], 2 * BYTES)
    scaled = np.ldexp(numbers, scales.astype(np.int32)[..., None] - BIAS)
    return scaled.reshape(*blocks.shape[:-2], -1)


def with_dequantized(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Joins the blocks and scales of each tensor in MXFP4 to one, under its name.

    Raises:
      WeightsError: blocks without scales, of other shapes, or scales that are not numbers.
    """
    joined = dict(tensors)
    for name, blocks in tensors.items():
        if not name.endswith(BLOCKS) or blocks.dtype != np.uint8:
            continue
        short = name.removesuffix(BLOCKS)
        scales = joined.pop(short + SCALES, None)
        if scales is None or scales.dtype != np.uint8:
            raise WeightsError(f"{name}: MXFP4 needs {short}{SCALES} of uint8 beside it.")
        is_blocks = len(blocks.shape) == 4 and blocks.shape[-1] == BYTES
        if not is_blocks or scales.shape != blocks.shape[:-1]:
            raise WeightsError(
                f"{name} has shape {list(blocks.shape)}, {short}{SCALES} {list(scales.shape)}:"
                f" MXFP4 is [experts, outputs, blocks, {BYTES}] and the same without the last"
                " axis."
            )
        if (scales.array == NOT_A_NUMBER).any():
            raise WeightsError(f"{short}{SCALES}: has exponents of {NOT_A_NUMBER}, no number.")
        if short in tensors:
            raise WeightsError(f"{short}: is in the file in MXFP4 and as it is; remove one.")
        del joined[name]
        joined[short] = Mxfp4Tensor(blocks.array, scales.array)
    return joined
