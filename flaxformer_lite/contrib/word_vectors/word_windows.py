"""The base of objectives that learn word vectors from neighboring words, by negative sampling."""

import abc
import functools
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config.rules import ConfigError, NotNegative, Size
from flaxformer_lite.files.read import Json
from flaxformer_lite.nn.functions.embedding import take_rows
from flaxformer_lite.objectives.base import (
    Baseline,
    Dataset,
    Metric,
    Objective,
)
from flaxformer_lite.objectives.row_plans import RowPlan, cut_windows
from flaxformer_lite.objectives.rows import Example, Rows, Tokenizer, row_ids
from flaxformer_lite.objectives.sums import TOKENS, LossSums, Projected, by_source
from flaxformer_lite.objectives.text.text_objective import label_counts
from flaxformer_lite.types import Arrays


@dataclass(frozen=True, kw_only=True)
class WordWindows(Objective):
    """Distinguishes the words of a window from noise.

    Maximizes log sigma(s(true)) + K E_noise log sigma(-s(noise)) for scores s.

    A row is a stretch of text without its special tokens, from which frequent words w are dropped
    at random: they stay with probability sqrt(subsample / f(w)), f being their share of the
    training text. The words up to r places to the left and right of a word are its contexts, with r
    drawn from 1 .. window for each; no window leaves its document. Noise words are drawn from f **
    noise_power, `draws` for a whole row, so that its windows share them: the expectation over the
    noise is their mean, and a draw that is the true word does not count.
    """

    window: Size = 5
    negatives: Size = 5  # K, the weight of the noise
    draws: Size = 64
    noise_power: NotNegative = 0.75
    subsample: NotNegative = 1e-3  # 0 keeps all words

    head = "lm"
    skeletons = ("embedding",)
    shown = (Metric("loss", unit="nats per word and its noise"),)

    def plan_rows(
        self,
        offsets: Mapping[str, np.ndarray],
        length: int,
        target_length: int,
        tokenizer: Tokenizer,
    ) -> RowPlan:
        return cut_windows(offsets["ids"], width=length, stride=length)

    @abc.abstractmethod
    def weigh(self, contexts_T: np.ndarray) -> np.ndarray:
        """Returns the number of true pairs of each word, [T], from the sizes of the windows."""

    @abc.abstractmethod
    def predictions_of(
        self, x_BTD: jax.Array, contexts_BTS: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns each word's query, [B, T, D], and the mask of its true positions, [B, T, S].

        Args:
          x_BTD: vectors of the row's words.
          contexts_BTS: 1.0 where the word at s is around that at t.
        """

    def loss(self, outputs: Projected, targets: Arrays, *, chunks: int) -> LossSums:
        words_BT = targets["labels"]
        noise_BN = targets["noise"]
        x_BTD, true_BTS = self.predictions_of(outputs.projection.x, contexts(targets))

        def scores(ids: jax.Array) -> jax.Array:
            y_BSD = take_rows(outputs.projection.kernel_VD, ids).astype(x_BTD.dtype)
            return jnp.einsum("BTD,BSD->BTS", x_BTD, y_BSD, preferred_element_type=jnp.float32)

        other_BSN = (words_BT[..., None] != noise_BN[:, None]).astype(jnp.float32)
        false_BTN = jnp.einsum("BTS,BSN->BTN", true_BTS, other_BSN) * (self.negatives / self.draws)
        true = true_BTS * jax.nn.softplus(-scores(words_BT))
        false = false_BTN * jax.nn.softplus(scores(noise_BN))
        losses = by_source(
            targets, jax.lax.stop_gradient(true.sum(axis=(1, 2)) + false.sum(axis=(1, 2)))
        )
        return LossSums(
            {TOKENS: true.sum() + false.sum()}, {TOKENS: targets["weights"].sum()}, losses
        )

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Builds an example, T = records.length, N = draws.

        inputs: input_ids [T] int32, padded behind the words that stay.
        targets: labels [T], the same; begin and end [T], the window of each word, which is in it;
          noise [N]; all int32. weights [T] float32.
        """
        stays, noise = _chances(records, self.subsample, self.noise_power)
        pieces = row_ids(records, index)
        ids = np.concatenate(pieces)
        document = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
        kept = rng.random(len(ids)) < stays[ids]
        ids = ids[kept]
        document = document[kept]
        position = np.arange(len(ids))
        reach = rng.integers(1, self.window + 1, len(ids))
        begin = np.maximum(position - reach, np.searchsorted(document, document, "left"))
        end = np.minimum(position + reach + 1, np.searchsorted(document, document, "right"))
        drawn = np.searchsorted(noise, rng.random(self.draws), "right")

        def padded(x: np.ndarray, value: int = 0) -> np.ndarray:
            return np.pad(x, (0, records.length - len(x)), constant_values=value).astype(np.int32)

        words = padded(ids, records.tokenizer.pad_id)
        weights = self.weigh(padded(end - begin - 1))
        targets = {
            "labels": words,
            "begin": padded(begin),
            "end": padded(end),
            "noise": drawn.astype(np.int32),
        }
        return {
            "inputs": {"input_ids": words},
            "targets": targets | {"weights": weights.astype(np.float32)},
        }

    def fit_baseline(self, data: Dataset) -> Json:
        return {"counts": label_counts(data, "train").tolist()}

    def baseline(self, data: Dataset, fitted: Json | None) -> Baseline | None:
        """Returns the loss of the best score that depends on the true word only.

        That score is log p(w) - log(K q(w)) with noise q.
        """
        if fitted is None:
            return None
        noise = np.diff(_chances(data.records, self.subsample, self.noise_power)[1], prepend=0.0)
        counts = np.asarray(fitted["counts"])[noise > 0]
        held_out = label_counts(data, "eval")[noise > 0]
        noise = noise[noise > 0]
        share = held_out / held_out.sum()
        # One more of each word, as the log of a count of 0 is minus infinity.
        score = np.log(counts + 1) - np.log((counts + 1).sum()) - np.log(self.negatives * noise)
        true = share @ np.logaddexp(0, -score)
        false = (noise * (1 - share)) @ np.logaddexp(0, score)
        return "word frequencies", float(true + self.negatives * false)


@functools.lru_cache(maxsize=64)  # of the sources of a mixture, too
def _chances(records: Rows, subsample: float, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns each word's probability of being kept, and the cumulative noise, [V]."""
    counts = np.zeros(len(records.counts))
    ordinary = records.tokenizer.ordinary_ids
    counts[ordinary] = records.counts[ordinary]
    if not counts.any():
        raise ConfigError(
            "data.tokenizer: the text has no word of its vocabulary; use another or lower"
            " min_count."
        )
    # Not zero, as `stays` divides by it.
    share = np.maximum(counts / counts.sum(), np.finfo(float).tiny)
    stays = np.zeros(len(counts))
    stays[ordinary] = np.minimum(1, np.sqrt(subsample / share[ordinary])) if subsample else 1
    drawn = np.cumsum(np.where(counts > 0, share**power, 0))
    return stays, drawn / drawn[-1]


def contexts(targets: Arrays) -> jax.Array:
    """Returns 1.0 where position s is in the window of the word at t and s != t, [B, T, S]."""
    begin_BT1 = targets["begin"][..., None]
    end_BT1 = targets["end"][..., None]
    weights_BT1 = targets["weights"][..., None]
    place_11S = jnp.arange(begin_BT1.shape[1])[None, None]
    within_BTS = (begin_BT1 <= place_11S) & (place_11S < end_BT1) & (place_11S != place_11S.mT)
    # a batch's padding has windows without weight
    return (within_BTS & (weights_BT1 > 0)).astype(jnp.float32)
