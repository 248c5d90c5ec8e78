"""Weights and inputs of tiny models, made from names and shapes alone.

Torch's side (tools/scoreboard.py) and ours make the same numbers, so a test needs no stored
weights; and a tensor of another name or shape has other numbers, so it cannot pass unnoticed.
"""

import hashlib
import zlib

import numpy as np

LENGTHS = (7, 5)
TARGET_LENGTHS = (5, 4)
TABLES = ("embed", "wte", "wpe", "shared")


def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draws a tensor: scales around one, biases around zero, matrices that keep the variance."""
    if name.endswith("inv_freq"):  # of rotary positions, in half precision as in ESM-2
        exponents = np.arange(shape[0]) / shape[0]
        return (10000.0**-exponents).astype(np.float16).astype(np.float32)
    # the bare model has no prefix
    short = name.removeprefix("model.").removeprefix("transformer.")
    draw = np.random.default_rng([zlib.crc32(short.encode())]).standard_normal(shape)
    if len(shape) < 2 or "norm" in f".{name}".rsplit(".", 2)[-2]:
        values = 0.2 * draw + (0.0 if name.endswith("bias") else 1.0)
    elif any(table in name for table in TABLES):
        values = 0.5 * draw
    else:
        values = 1.3 * draw * shape[-1] ** -0.5
    return values.astype(np.float32)


def digest(shapes: dict[str, tuple[int, ...]]) -> str:
    """Hashes the names and shapes of a file's tensors."""
    lines = sorted(f"{name} {list(shape)}" for name, shape in shapes.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def inputs(
    vocab_size: int,
    pad: int | None,
    *,
    seq2seq: bool = False,
    lengths: tuple[int, ...] = LENGTHS,
) -> dict[str, np.ndarray]:
    """Draws two rows of unequal length, padded on the right."""
    made = _rows("", lengths, vocab_size, pad)
    if seq2seq:
        made |= _rows("decoder_", TARGET_LENGTHS, vocab_size, pad)
    return made


def _rows(
    prefix: str, lengths: tuple[int, ...], vocab_size: int, pad: int | None
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([zlib.crc32(prefix.encode())])
    columns = np.arange(max(lengths))
    mask = np.stack([columns < length for length in lengths])
    ids = np.where(mask, rng.integers(5, vocab_size, mask.shape), pad or 0)
    return {
        f"{prefix}input_ids": ids.astype(np.int32),
        f"{prefix}attention_mask": mask.astype(np.int32),
    }
