"""The benchmark cases: shapes, and the batches that every peer gets. Needs only numpy, as peers
have other packages."""

from dataclasses import dataclass

import numpy as np

OPTIMIZER = dict(learning_rate=1e-4, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=1.0)
IGNORED = -100  # a label that does not count
MASKED_SHARE = 0.15


@dataclass(frozen=True)
class Case:
    """One piece of work: a train step, or a greedy continuation.

    Attributes:
      family: gpt2, bert or t5, with the published model's options.
      kind: train or generate.
      batch: sequences.
      length: tokens of input.
      target: tokens of an encoder-decoder's target; of a continuation, the new tokens.
      goal: how many times longer the usual choice should take (`table.USUAL`).
      rounds: number of rounds to measure, in turns.
    """

    family: str
    kind: str
    batch: int
    length: int
    target: int = 0
    layers: int = 12
    d_model: int = 768
    heads: int = 12
    mlp_dim: int = 3072
    vocab: int = 50257
    goal: float = 1.0
    rounds: int = 4

    @property
    def tokens(self) -> int:
        """Tokens that one run of the work reads (training) or writes (generation)."""
        return self.batch * (self.target if self.kind == "generate" else self.length + self.target)


SMALL = dict(layers=6, d_model=384, heads=6, mlp_dim=1536)
BERT = dict(vocab=30522)
T5 = dict(layers=6, d_model=512, heads=8, mlp_dim=2048, vocab=32128)
CASES = {
    "gpt_small": Case("gpt2", "train", 8, 256, goal=1.05, rounds=5, **SMALL),
    "gpt2_124m": Case("gpt2", "train", 2, 512, goal=1.05, rounds=3),
    "bert_base": Case("bert", "train", 8, 128, goal=1.25, rounds=3, **BERT),
    "t5_small": Case("t5", "train", 8, 256, 64, goal=1.05, **T5),
    "generate_gpt2_b1": Case("gpt2", "generate", 1, 16, 128, goal=2.0),
    "generate_gpt2_b8": Case("gpt2", "generate", 8, 16, 128, goal=2.0, rounds=3),
    "generate_t5_b8": Case("t5", "generate", 8, 64, 128, goal=2.0, **T5),
}


def batch(case: Case) -> dict[str, np.ndarray]:
    """Builds the arrays of a case, the same for every peer, int64: `input_ids` and, for training,
    aligned `labels`.

    A label of IGNORED does not count; an encoder-decoder's labels are its target's, with
    `decoder_input_ids`.
    """
    rng = np.random.default_rng(0)
    ids = rng.integers(3, case.vocab, (case.batch, case.length + 1))
    if case.kind == "generate":
        return {"input_ids": ids[:, 1:]}
    if case.family == "gpt2":
        return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}
    if case.family == "t5":
        labels = rng.integers(3, case.vocab, (case.batch, case.target))
        decoder_input_ids = np.concatenate(
            [np.zeros((case.batch, 1), np.int64), labels[:, :-1]], axis=1
        )
        return {"input_ids": ids[:, 1:], "decoder_input_ids": decoder_input_ids, "labels": labels}
    hidden = ids[:, 1:].copy()
    labels = np.full((case.batch, case.length), IGNORED)
    rows = np.arange(case.batch)[:, None]
    chosen = np.argsort(rng.random(hidden.shape), axis=1)[
        :, : int(np.ceil(case.length * MASKED_SHARE))
    ]
    labels[rows, chosen] = hidden[rows, chosen]
    hidden[rows, chosen] = 2
    return {"input_ids": hidden, "labels": labels}
