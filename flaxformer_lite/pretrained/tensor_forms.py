"""Tensors that a file holds in another form than the family's own files, read as the plain ones.

FP8: a matrix W [outputs, inputs] lies in a file as `W`, float8_e4m3fn, and `W_scale_inv`, a factor
for each block of 128 x 128; blocks at the edges may be smaller. It is dequantized as it is read.

MXFP4: a number has four bits, a sign and one of eight magnitudes; each 32 along an axis of inputs
share a power of two. A tensor W [experts, inputs, outputs] lies in a file as `W_blocks`, uint8
[experts, outputs, inputs / 32, 16], two numbers a byte, the first in its lower half, and
`W_scales`, uint8 [experts, outputs, inputs / 32], exponents that 127 was added to. It is
dequantized as it is read; each product is exact in bfloat16.

Stacked experts: transformers 5 keeps `experts.gate_up_proj` [experts, 2 outputs, inputs], the gates
first, and `experts.down_proj` [experts, outputs, inputs], where the family's own files have a
tensor for each expert; files of Qwen3-VL have both with their last axes exchanged.

Reference: DeepSeek-AI 2024, DeepSeek-V3 (arXiv:2412.19437), section 3.3.2; Open Compute Project,
"OCP Microscaling Formats (MX) Specification" 1.0 (2023), section 5.3.1 and table 5.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from flaxformer_lite.models.weight_map import WeightRow
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
FP8_BLOCK = 128  # rows and columns that share a factor, in DeepSeek-V3's files
FP8_SCALES = "_scale_inv"
FLOATS = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16))

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = np.asarray([*MAGNITUDES, *(-x for x in MAGNITUDES)], np.float32)
BLOCK_BYTES = 16  # of a block
EXPONENT_BIAS = 127  # of the exponents
NOT_A_NUMBER = 255  # as an exponent
BLOCKS = "_blocks"
SCALES = "_scales"

UP = ".experts.gate_up_proj"
DOWN = ".experts.down_proj"
SINGLE = ".experts.{e}.gate_proj"

# What quantized the tensors of a file, by the ends of their names; config.json may not say.
UNREAD = {
    ".qweight": "gptq or awq",
    ".SCB": "bitsandbytes in 8 bits",
    ".absmax": "bitsandbytes in 4 bits",
    ".weight_packed": "compressed-tensors",
    ".weight_scale": "compressed-tensors or the like, with scales of channels",
}


def with_plain_forms(rows: tuple[WeightRow, ...], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of a file in the form that the family's own files have.

    Raises:
      WeightsError: a tensor in another form without its other half, or of another shape or dtype,
        or in a form that is not read.
    """
    for name in tensors:
        for end, method in UNREAD.items():
            if name.endswith(end):
                raise WeightsError(
                    f"{name}: weights quantized by {method} are not supported, only by mxfp4 and"
                    " fp8; fetch the model in float32, float16 or bfloat16."
                )
    return split_experts(rows, join_fp8(join_mxfp4(tensors)))


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
        row_O = np.arange(self.shape[0])[outputs] // FP8_BLOCK
        column_I = np.arange(self.shape[1])[inputs] // FP8_BLOCK
        return numbers_OI * self.scales.astype(np.float32)[np.ix_(row_O, column_I)]


def join_fp8(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Joins each matrix in FP8 with its scales to one, under its name.

    Raises:
      WeightsError: a tensor in FP8 without scales, scales of another shape or dtype, or scales that
        are not finite.
    """
    joined = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.dtype != FP8:
            continue
        scales = joined.pop(name + FP8_SCALES, None)
        if scales is None or scales.dtype not in FLOATS:
            raise WeightsError(
                f"{name}: FP8 needs {name}{FP8_SCALES} in float32 or bfloat16 beside it."
            )
        blocks = tuple(-(-size // FP8_BLOCK) for size in tensor.shape)
        if len(blocks) != 2 or scales.shape != blocks:
            raise WeightsError(
                f"{name} has shape {list(tensor.shape)}, {name}{FP8_SCALES} {list(scales.shape)}:"
                f" FP8 is a matrix, and a factor for each block of {FP8_BLOCK} x {FP8_BLOCK}."
            )
        if not np.isfinite(scales.array.astype(np.float32)).all():
            raise WeightsError(f"{name}{FP8_SCALES}: has factors that are not finite.")
        joined[name] = Fp8Tensor(tensor.array, scales.array)
    return joined


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
    numbers = pairs.reshape(*blocks.shape[:-1], 2 * BLOCK_BYTES)
    scaled = np.ldexp(numbers, scales.astype(np.int32)[..., None] - EXPONENT_BIAS)
    return scaled.reshape(*blocks.shape[:-2], -1)


def join_mxfp4(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
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
        is_blocks = len(blocks.shape) == 4 and blocks.shape[-1] == BLOCK_BYTES
        if not is_blocks or scales.shape != blocks.shape[:-1]:
            raise WeightsError(
                f"{name} has shape {list(blocks.shape)}, {short}{SCALES} {list(scales.shape)}:"
                f" MXFP4 is [experts, outputs, blocks, {BLOCK_BYTES}] and the same without the last"
                " axis."
            )
        if (scales.array == NOT_A_NUMBER).any():
            raise WeightsError(f"{short}{SCALES}: has exponents of {NOT_A_NUMBER}, no number.")
        if short in tensors:
            raise WeightsError(f"{short}: is in the file in MXFP4 and as it is; remove one.")
        del joined[name]
        joined[short] = Mxfp4Tensor(blocks.array, scales.array)
    return joined


def split_experts(rows: tuple[WeightRow, ...], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors with a view of each expert's matrices in place of a stack.

    Raises:
      WeightsError: a stack without its other half, or of a shape that is neither order of axes.
    """
    if not any(row.name.endswith(SINGLE) for row in rows):
        return tensors
    split = dict(tensors)
    for name in tensors:
        if not name.endswith(UP):
            continue
        layer = name.removesuffix(UP)
        ups = split.pop(name)
        downs = split.pop(f"{layer}{DOWN}", None)
        if downs is None:
            raise WeightsError(f"{name}: needs {layer}{DOWN} beside it.")
        pairs = _as_linears(name, ups, downs)
        width = pairs[0].shape[1] // 2
        for expert, (up, down) in enumerate(zip(*pairs, strict=True)):
            one = f"{layer}.experts.{expert}"
            split[f"{one}.gate_proj.weight"] = Tensor(up[:width])
            split[f"{one}.up_proj.weight"] = Tensor(up[width:])
            split[f"{one}.down_proj.weight"] = Tensor(down)
    return split


def _as_linears(name: str, ups: Tensor, downs: Tensor) -> tuple:
    """Returns both stacks as [experts, outputs, inputs]."""
    for order in ((0, 1, 2), (0, 2, 1)):
        if len(ups.shape) == len(downs.shape) == len(order):
            up = ups.array.transpose(order)
            down = downs.array.transpose(order)
            # Both stacks must agree, as one alone may be square in its last axes.
            if up.shape == (len(down), 2 * down.shape[2], down.shape[1]):
                return up, down
    raise WeightsError(
        f"{name} has shape {list(ups.shape)}, down_proj {list(downs.shape)}: stacked experts are"
        " [experts, 2 outputs, inputs] and [experts, inputs, outputs], or with both last axes"
        " exchanged."
    )
