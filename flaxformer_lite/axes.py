"""The dimension key: one letter per axis, the same letter everywhere.

Arrays of rank two and more carry their axes as a suffix (`q_BTNH`), and einsum equations are
written in these letters, so `Einsum('BTD,DNH->BTNH')` says what it does, what shape its weight has,
and how that weight may be sharded. The letters follow `jax.nn.dot_product_attention`.
"""

from typing import NamedTuple


class Axis(NamedTuple):
    name: str  # the logical axis name that partitioning rules use
    meaning: str


AXES = {
    "B": Axis("batch", "examples in a batch"),
    "T": Axis("length", "target positions: the tokens that ask"),
    "S": Axis("source", "source positions: the tokens that answer"),
    "Q": Axis("part", "parts of a sequence, one per device"),
    "D": Axis("embed", "model width"),
    "N": Axis("heads", "query heads"),
    "K": Axis("kv_heads", "key and value heads; N is a multiple of K"),
    "G": Axis("group", "query heads that share one key and value head, N / K"),
    "H": Axis("head_dim", "width of one head"),
    "F": Axis("mlp", "width of the feed-forward layer"),
    "V": Axis("vocab", "tokens in the vocabulary"),
    "U": Axis("units", "numbers in the state of a recurrent layer"),
    "Z": Axis("gates", "gates and candidates of a recurrent cell"),
    "E": Axis("factor", "width of a factorised embedding, or of a latent vector of attention"),
    "R": Axis("relative", "buckets of relative distance"),
    "P": Axis("pair", "pairs of dimensions that rotary positions turn, at most H / 2"),
    "M": Axis("masked", "masked positions gathered from one example"),
    "C": Axis("labels", "classes of a classification head"),
    "X": Axis("experts", "experts of a layer"),
    "A": Axis("active", "experts that one token uses"),
    "L": Axis("list", "tokens of all examples in one list"),
    "W": Axis("blocks", "blocks of rows"),
    "J": Axis("beams", "continuations that beam search keeps side by side"),
    "Y": Axis("layers", "layers stacked by scan"),
}
