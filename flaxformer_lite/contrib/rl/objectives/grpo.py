"""Reinforcement learning from rewards of the answers that the model itself writes.

Each step draws a group of answers to each prompt, rewards them, and makes those more likely that
are better than their group (contrib/rl/policy_gradient.py has the equations and their papers).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.config.experiment import is_object
from flaxformer_lite.config.rules import (
    ModelPlace,
    NotNegative,
    OneOf,
    Plugin,
    Positive,
    Probability,
    Range,
    Size,
)
from flaxformer_lite.contrib.rl.call_reward import call_reward
from flaxformer_lite.contrib.rl.policy_gradient import (
    TokenLosses,
    compute_advantages,
    compute_token_losses,
)
from flaxformer_lite.contrib.rl.rollout import (
    Collected,
    CurrentPolicy,
    Drawn,
    RolloutObjective,
)
from flaxformer_lite.files.read import Json, parse_object
from flaxformer_lite.nn.functions.losses import DeferredLogits, token_log_probs
from flaxformer_lite.objectives.auxiliary_model import AuxiliaryModel
from flaxformer_lite.objectives.base import Baseline, Dataset, Metric, score_metric
from flaxformer_lite.objectives.rows import (
    Encoded,
    Encoder,
    Example,
    Rows,
    StoredColumn,
    Tokenizer,
    fill_row,
)
from flaxformer_lite.objectives.sums import LossSums
from flaxformer_lite.objectives.tables.breakdown import Breakdown, Cell, shorten_text
from flaxformer_lite.objectives.tables.chat import (
    VARIABLES,
    ChatTask,
    asked_and_answered,
    messages_of,
    variables_of,
)
from flaxformer_lite.objectives.tables.task import Column, Row
from flaxformer_lite.objectives.tables.writing import METRICS
from flaxformer_lite.types import Arrays, Predictions

AnyArray = TypeVar("AnyArray", jax.Array, np.ndarray)
# How far from 1, in float32, the ratio may be between the probability of a token as it was drawn,
# with caches, and that of the same token read in its whole row. XLA:CPU stays below 1e-5; a GPU's
# float32 products may have the precision of TF32, and a fault is above 0.1.
MAX_RATIO_GAP = 1e-2
ROWS = ("input_ids", "segment_ids", "labels", "answers")


class Policy(NamedTuple):
    """The outputs of the model, with the inputs that the loss reads."""

    projection: DeferredLogits
    reference: DeferredLogits | None
    inputs: dict[str, jax.Array]


@dataclass(frozen=True, kw_only=True)
class Grpo(RolloutObjective, ChatTask):
    """Maximizes the rewards of answers to the prompts of a table.

    An example is a prompt with a group of G answers, which are drawn before each step. `answer` and
    all other columns of its row are handed to the rewards. A prompt that leaves too little of
    `data.length` for an answer is dropped.
    """

    # answers to each prompt, which are compared with each other
    group: Annotated[int, Range(2, 1 << 16, "be at least 2, and at most 65536")] = 8
    answer_length: Size = 16
    # files of flaxformer_lite/contrib/rl/rewards, or module:function
    rewards: tuple[Annotated[str, Plugin("rewards")], ...] = ("exact_match",)
    reward_weights: tuple[float, ...] = ()  # of each in their sum; empty: 1
    reward_options: Annotated[str, is_object] = ""  # what the records of all rows have, too
    reward_seconds: Positive = 60.0  # most of a reward for the answers of a step
    temperature: Positive = 1.0  # of the answers, and of their log-probabilities
    updates: Size = 1  # of the weights with each batch of answers
    # advantages: rewards minus their mean by their deviation (GRPO), as they are (Dr. GRPO), or
    # minus the mean of the others (RLOO)
    normalize: Annotated[str, OneOf(("std", "none", "leave_one_out"))] = "std"
    # the loss is a mean over answers of means over tokens (GRPO), over all tokens (DAPO), or over
    # answers of sums over tokens by answer_length (Dr. GRPO)
    average: Annotated[str, OneOf(("sequence", "token", "constant"))] = "sequence"
    # what is clipped: the ratio of each token, or of each answer (GSPO)
    ratio: Annotated[str, OneOf(("token", "sequence"))] = "token"
    clip_low: Probability = 0.2
    clip_high: NotNegative = 0.2
    kl: NotNegative = 0.0  # weight of the divergence from kl_model
    kl_model: ModelPlace = ""  # directory of weights, or workdir
    drop_cut: bool = False  # whether answers without an end are not learned from

    strips_texts = False  # rewards read an answer as it is, in training and held out
    learn = "last"
    stored: ClassVar = {"prompt": StoredColumn("token"), "end": StoredColumn("int32", ())}
    columns = (
        Column("prompt", ("instruction", "question", "problem", "messages", "conversations")),
        Column("answer", ("response", "completion", "solution"), optional=True, predicted=True),
        *VARIABLES,
    )
    sample = ({"prompt": "a", "answer": "b"},)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rewards:
            raise ConfigError("rewards=(): name at least one, such as exact_match.")
        if self.reward_weights and len(self.reward_weights) != len(self.rewards):
            raise ConfigError(
                f"reward_weights={self.reward_weights}: must be one for each of the rewards"
                f" {', '.join(self.rewards)}, or ()."
            )
        if not self.score_rows:
            raise ConfigError(
                "score_rows=0: a run is judged by its rewards of held-out answers; set 1 or more."
            )
        if bool(self.kl) != bool(self.kl_model):
            raise ConfigError(
                f"kl={self.kl:g}, kl_model={self.kl_model!r}: a divergence is from a model; set"
                " both, such as kl_model to the directory of train.init_from, or neither."
            )

    @property
    def updates_per_step(self) -> int:
        return self.updates

    @property
    def shown(self) -> tuple[Metric, ...]:  # type: ignore[override]
        shown: tuple[Metric, ...] = (
            score_metric("reward", live=True),
            Metric("cut", form=".0%", live=True, in_training=True),
            Metric("tokens", form=".1f", live=True, in_training=True),
            Metric("entropy", unit="nats a token drawn", in_training=True),
            Metric("ratio_gap", "worst ratio to the sampler", form=".0e", in_training=True),
            Metric("equal_groups", "share of groups with equal rewards", form=".1%"),
            Metric("clipped", "share of clipped tokens", form=".1%"),
            Metric("loss"),
        )
        if self.is_scored:
            shown += METRICS[self.scored_by]
        return shown

    @property
    def written_rows(self) -> int:
        return self.score_rows

    def auxiliary_model(self, model: ModelConfig) -> AuxiliaryModel | None:
        if not self.kl_model:
            return None
        return AuxiliaryModel("kl_model", source=self.kl_model)

    def fit_model(self, model: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
        in_adapter = getattr(model.adapter, "dropout", 0.0)
        for name, value in (("dropout", model.dropout), ("adapter.dropout", in_adapter)):
            if value:
                raise ConfigError(
                    f"model.{name}={value}: answers are drawn without dropout, so their"
                    f" log-probabilities would be of other models; set model.{name}=0."
                )
        if model.logit_softcap and self.temperature != 1:
            raise ConfigError(
                f"objective.temperature={self.temperature:g}: capped logits are not divided by a"
                " temperature; set 1."
            )
        return super().fit_model(model, tokenizer)

    def encode(self, rows: Sequence[Row], encoder: Encoder) -> list[list[Encoded]]:
        chats = []
        for number, row in enumerate(rows):
            messages = messages_of(row["prompt"], number, "prompt")
            chats.append(variables_of(row, messages, number))
        records: list[list[Encoded]] = []
        for turns in self.turns(chats, encoder.length, encoder):
            fits = 0 < len(turns.prompt) <= encoder.length - self.answer_length
            record: Encoded = {"prompt": turns.prompt, "end": turns.end}
            records.append([record] if fits else [])
        return records

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Returns the prompt in each of G rows; `collect` adds the answers.

        Inputs are input_ids, segment_ids, labels, answers, [G, T] int32; log_probs, [G, T], and
        rewards, [G], float32; example and update, [] int32. The target is weights, float32 [G], or
        [G, T] for a mean over tokens.
        """
        nothing = [Drawn(np.zeros(0, np.int32), np.zeros(0, np.float32))] * self.group
        rows = self._rows(records, [self.prompt(records, index)], nothing)
        inputs = {name: x[0] for name, x in rows.items()}
        inputs["rewards"] = np.zeros(self.group, np.float32)
        inputs["example"] = np.asarray(index, np.int32)
        inputs["update"] = np.zeros((), np.int32)
        return {"inputs": inputs, "targets": {"weights": self._weights(rows["answers"])[0]}}

    def _rows(
        self, records: Rows, prompts: Sequence[np.ndarray], drawn: Sequence[Drawn]
    ) -> dict[str, np.ndarray]:
        """Joins each prompt with each of its answers.

        Returns:
          Arrays [B, G, T]: input_ids, prompt and answer; segment_ids, 1 for them; labels, the next
          token of each; answers, 1 where that is of the answer; log_probs, as it was drawn.
        """
        shape = (len(prompts), self.group, records.length)
        rows = {name: np.zeros(shape, np.int32) for name in ROWS}
        rows["log_probs"] = np.zeros(shape, np.float32)
        for number, (ids, log_probs) in enumerate(drawn):
            at = divmod(number, self.group)
            prompt = prompts[at[0]]
            whole, segments = fill_row(
                [np.concatenate([prompt, ids])], records.length + 1, records.tokenizer.pad_id
            )
            answer = slice(len(prompt) - 1, len(prompt) - 1 + len(ids))
            rows["input_ids"][at] = whole[:-1]
            rows["segment_ids"][at] = segments[:-1]
            rows["labels"][at] = whole[1:]
            rows["answers"][at][answer] = 1
            rows["log_probs"][at][answer] = log_probs
        return rows

    def _weights(self, answers_BGT: np.ndarray) -> np.ndarray:
        if self.average == "token":
            return answers_BGT.astype(np.float32)
        return np.ones(answers_BGT.shape[:2], np.float32)

    def collect(self, policy: CurrentPolicy, records: Rows, examples: np.ndarray) -> Collected:
        prompts = [self.prompt(records, int(i)) for i in examples]
        stops = np.atleast_1d(self.limits(records)["eos_token_id"])
        drawn = policy.draw(
            prompts,
            samples=self.group,
            width=records.length - self.answer_length,
            max_new_tokens=self.answer_length,
            temperature=self.temperature,
            eos_token_id=tuple(stops.tolist()),
        )
        shape = (len(prompts), self.group)
        written = [records.tokenizer.decode(ids.tolist()) for ids, _ in drawn]
        counts_N = np.asarray([len(ids) for ids, _ in drawn])
        is_cut_N = ~np.isin([ids[-1] for ids, _ in drawn], stops)
        answered = np.repeat(examples, self.group)

        def reward_prompts(rows: range) -> np.ndarray:
            own = slice(rows.start * self.group, rows.stop * self.group)
            answers = (answered[own], written[own], counts_N[own], is_cut_N[own])
            return np.stack(list(self.reward_answers(records, *answers).values()), axis=1)

        rewards_NR = policy.share(reward_prompts, len(prompts))
        by_name = dict(zip(self.rewards, rewards_NR.T, strict=True))
        rewards_BG = self.sum_rewards(by_name).reshape(shape)
        inputs = self._rows(records, prompts, drawn)
        drawn_BGT = inputs["log_probs"]
        is_answer_BGT = inputs["answers"] > 0
        inputs["rewards"] = rewards_BG
        inputs["example"] = examples.astype(np.int32)
        inputs["update"] = np.zeros(len(examples), np.int32)
        predicted = policy.predict(inputs)
        inputs["log_probs"] = predicted["log_probs"]
        if self.drop_cut:
            inputs["answers"] = inputs["answers"] * ~is_cut_N.reshape(*shape, 1)
        # Of the model itself, as the sampler's are, whatever the temperature.
        ratio_BGT = np.exp(predicted["model_log_probs"] - drawn_BGT)
        gap_BGT = np.where(is_answer_BGT, ratio_BGT - 1, 0.0)
        if policy.dtype == "float32":
            _refuse_gap(np.abs(gap_BGT), list(map(len, prompts)))
        metrics = {
            **_reward_metrics(rewards_BG, by_name),
            "cut": is_cut_N.mean(),
            "tokens": counts_N.mean(),
            "entropy": -predicted["log_probs"][is_answer_BGT].mean(),
            "ratio_gap": np.abs(gap_BGT).max(),
            "mean_ratio_gap": np.abs(gap_BGT[is_answer_BGT]).mean(),
            "equal_groups": (rewards_BG == rewards_BG[:, :1]).all(axis=1).mean(),
        }
        advantages = compute_advantages(jnp.asarray(rewards_BG), normalize=self.normalize)
        record = {
            "written": np.asarray(written, object).reshape(shape).tolist(),
            "cut": is_cut_N.reshape(shape).tolist(),
            "rewards": {n: values.reshape(shape).tolist() for n, values in by_name.items()},
            "advantages": np.asarray(advantages).tolist(),
            "gaps": np.abs(gap_BGT).max(axis=2).tolist(),
        }
        of_tokens = []
        for gaps_T, is_answer_T in zip(_rows_of(gap_BGT), _rows_of(is_answer_BGT), strict=True):
            of_tokens.append(gaps_T[is_answer_T].tolist())
        targets = {"weights": self._weights(inputs["answers"])}
        return Collected(
            {"inputs": inputs, "targets": targets},
            {name: float(value) for name, value in metrics.items()},
            record,
            {"token_gaps": of_tokens},
        )

    def rehearse(self, records: Rows) -> None:
        """Asks each reward for an answer that is the stop token alone."""
        self.reward_answers(records, [0], [""], [1], np.zeros(1, bool))

    def reward_answers(
        self,
        records: Rows,
        examples: Sequence[int] | np.ndarray,
        written: Sequence[str],
        counts: Sequence[int] | np.ndarray,
        is_cut: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Returns the rewards of answers to examples, float32 [N], by the name of the reward."""
        options = parse_object((self.reward_options or "{}").encode(), "objective.reward_options")
        asked = []
        for example, text, count, cut in zip(examples, written, counts, is_cut, strict=True):
            row = records.table_row(int(example))
            known = {name: value for name, value in row.items() if value is not None}
            asked.append(
                options
                | known
                | {
                    "prompt": self.prompt_and_reference(records, int(example))[0],
                    "written": text,
                    "tokens": int(count),
                    "most_tokens": self.answer_length,
                    "cut": bool(cut),
                }
            )
        return {name: call_reward(name, asked, self.reward_seconds) for name in self.rewards}

    def sum_rewards(self, by_name: Mapping[str, np.ndarray]) -> np.ndarray:
        """Sums rewards, each times its weight."""
        weights = self.reward_weights or (1.0,) * len(self.rewards)
        return np.asarray(weights, np.float32) @ np.stack(list(by_name.values()))

    def outputs(
        self, model: nn.Module, inputs: Arrays, kl_model: nn.Module | None = None
    ) -> Policy:
        others = dict(inputs)
        tokens = {}
        for name in ("input_ids", "segment_ids"):
            x_BGT = others.pop(name)
            tokens[name] = x_BGT.reshape(-1, x_BGT.shape[-1])
        reference = None
        if kl_model is not None:
            reference = kl_model.features(**tokens).projection
        return Policy(model.features(**tokens).projection, reference, others)

    def _log_probs(
        self, projection: DeferredLogits, labels_NT: jax.Array, chunks: int = 4
    ) -> jax.Array:
        """Computes the log-probabilities of labels at the temperature, float32 [N, T]."""
        if self.temperature != 1:
            bias_V = projection.bias_V
            if bias_V is not None:
                bias_V = bias_V / self.temperature
            scale = projection.scale / self.temperature
            projection = dataclasses.replace(projection, scale=scale, bias_V=bias_V)
        return token_log_probs(projection, labels_NT, chunks=chunks)

    def loss(self, outputs: Policy, targets: Arrays, *, chunks: int) -> LossSums:
        inputs = outputs.inputs
        labels_NT = _rows_of(inputs["labels"])
        mask_NT = _rows_of(inputs["answers"]) > 0
        log_probs_NT = self._log_probs(outputs.projection, labels_NT, chunks)
        known_NT = _rows_of(inputs["log_probs"])
        # The weights of the first update are those of the answers. Its ratio is 1 to the last bit,
        # which another program's log-probabilities of the same weights would not give.
        is_first_N1 = jnp.repeat(inputs["update"] == 0, self.group)[:, None]
        old_NT = jnp.where(is_first_N1, jax.lax.stop_gradient(log_probs_NT), known_NT)
        reference_NT = None
        if outputs.reference is not None:
            reference_NT = jax.lax.stop_gradient(
                self._log_probs(outputs.reference, labels_NT, chunks)
            )
        advantages_BG = compute_advantages(inputs["rewards"], normalize=self.normalize)
        losses = compute_token_losses(
            log_probs_NT,
            old_NT,
            advantages_BG.reshape(-1),
            mask_NT,
            reference_NT,
            ratio=self.ratio,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            kl=self.kl,
        )
        weights = targets["weights"]
        total = self._sum_losses(losses, mask_NT, weights)
        counted_NT = mask_NT.astype(jnp.float32)
        tokens = counted_NT.sum()
        each = {"clipped": losses.is_clipped, "drift": jnp.abs(log_probs_NT - known_NT)}
        if reference_NT is not None:
            each["divergence"] = losses.divergence
        metrics = {}
        for name, values_NT in each.items():
            kept_NT = jnp.where(mask_NT, values_NT.astype(jnp.float32), 0.0)
            metrics[name] = (jax.lax.stop_gradient(kept_NT).sum(), tokens)
        return LossSums({"weights": total}, {"weights": weights.sum()}, metrics)

    def _sum_losses(self, losses: TokenLosses, mask_NT: jax.Array, weights: jax.Array) -> jax.Array:
        loss_NT = jnp.where(mask_NT, losses.loss, 0.0)
        if self.average == "token":
            return (loss_NT * _rows_of(weights)).sum()
        length_N = jnp.float32(self.answer_length)
        if self.average == "sequence":
            length_N = jnp.maximum(mask_NT.sum(axis=1, dtype=jnp.float32), 1.0)
        return (loss_NT.sum(axis=1) / length_N * weights.reshape(-1)).sum()

    def predictions(self, outputs: Policy) -> dict[str, jax.Array]:
        """Returns the log-probabilities of the labels at the temperature, and at 1, [B, G, T]."""
        shape = outputs.inputs["labels"].shape
        labels_NT = _rows_of(outputs.inputs["labels"])
        tempered_NT = self._log_probs(outputs.projection, labels_NT)
        plain_NT = tempered_NT
        if self.temperature != 1:
            plain_NT = token_log_probs(outputs.projection, labels_NT)
        return {"log_probs": tempered_NT.reshape(shape), "model_log_probs": plain_NT.reshape(shape)}

    def check_first_update(self, metrics: Mapping[str, float], dtype: str) -> None:
        """Refuses, in float32, log-probabilities that are not those from before the update."""
        if dtype == "float32" and not metrics["drift"] <= MAX_RATIO_GAP:
            raise ConfigError(
                "the log-probabilities of the answers' tokens differ in the first update from those"
                f" before it by {metrics['drift']:.1e} in the mean, by more than {MAX_RATIO_GAP:g};"
                " the model computes something else in training."
            )

    def held_out_metrics(self, metrics: dict[str, float], data: Dataset) -> dict[str, float]:
        """Returns nothing of the loss, as held-out prompts have no answers to learn from."""
        return {}

    def scores(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> dict[str, float]:
        if "written" not in predictions:
            return {}
        metrics = super().scores(predictions, examples, data)
        total, by_name = _reward_held_out(self, data, _listed(predictions, examples))
        counts, is_cut = self._counts(predictions["tokens"])
        metrics["tokens"] = float(counts.mean())
        metrics["cut"] = float(is_cut.mean())
        return metrics | _reward_metrics(total, by_name)

    def _counts(self, without_stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of held-out answers, with a stop token as in training, and whether
        they are cut."""
        is_cut = without_stop >= self.answer_length
        return without_stop + ~is_cut, is_cut

    def breakdown(
        self, predictions: Predictions, examples: np.ndarray, data: Dataset
    ) -> list[Breakdown]:
        """Tabulates what was written for held-out prompts by its reward."""
        if "written" not in predictions:
            return []
        total, _ = _reward_held_out(self, data, _listed(predictions, examples))
        rows: list[list[Cell]] = []
        for i in np.argsort(-total, kind="stable"):
            prompt, reference = self.prompt_and_reference(data.records, int(examples[i]))
            texts = (prompt, predictions["written"][i], reference or "")
            rows.append([float(total[i]), *map(shorten_text, texts)])
        head = ("reward", "prompt", "written", "reference")
        return [Breakdown("answers by their reward", head, rows)]

    def fit_baseline(self, data: Dataset) -> Json:
        return {}

    def baseline(self, data: Dataset, fitted: Json | None) -> Baseline | None:
        return None

    def prompt_and_reference(self, records: Rows, example: int) -> tuple[str, str | None]:
        row = records.table_row(example)
        prompt, _ = asked_and_answered(messages_of(row["prompt"], example, "prompt"))
        answer = row["answer"]
        if answer is None:
            return prompt, None
        return prompt, str(answer)

    def show_collected(self, record: Json, row: int) -> list[str]:
        """Returns a line of each answer, the best first."""
        lines: list[str] = []
        for i in np.argsort(-np.asarray(record["advantages"][row]), kind="stable"):
            of_rewards = []
            for name, values in record["rewards"].items():
                of_rewards.append(f"{name} {values[row][i]:.4g}")
            gap = record["gaps"][row][i]
            text = repr(record["written"][row][i])[1:-1]
            end = " (cut)" * record["cut"][row][i]
            lines.append(
                f"{', '.join(of_rewards)}; advantage {record['advantages'][row][i]:.4g}; worst"
                f" ratio to the sampler {gap:.0e}: {text}{end}"
            )
            if "token_gaps" in record:
                gaps = record["token_gaps"][row * self.group + i]
                lines.append(f"    of its tokens {' '.join(format(gap, '.0e') for gap in gaps)}")
        return lines


def _reward_metrics(total: np.ndarray, by_name: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns the mean reward, and each one's mean if there are several."""
    metrics = {"reward": float(total.mean())}
    if len(by_name) > 1:
        for name, values in by_name.items():
            metrics[f"reward/{name}"] = float(values.mean())
    return metrics


def _refuse_gap(gap_BGT: np.ndarray, prompts: Sequence[int]) -> None:
    """Refuses ratios too far from 1, and names the token; `prompts` are the lengths of prompts."""
    row, answer, column = map(int, np.unravel_index(np.argmax(gap_BGT), gap_BGT.shape))
    worst = gap_BGT[row, answer, column]
    if not worst <= MAX_RATIO_GAP:
        token = column - prompts[row] + 2
        raise ConfigError(
            f"the probability of token {token} of answer {answer + 1} to row {row} of the batch is"
            f" {worst:.1e} of it away from its probability as it was drawn, more than"
            f" {MAX_RATIO_GAP:g}; the model computes something else with caches, which"
            " flaxformer_lite verify shows."
        )


@functools.lru_cache(maxsize=1)  # scores and tables of an evaluation ask, and a reward may be dear
def _reward_held_out(
    task: Grpo, data: Dataset, answers: tuple[tuple[int, str, int], ...]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the sum of rewards, and each of them, of answers: example, text, and tokens."""
    examples, written, without_stop = zip(*answers, strict=True)
    counts, is_cut = task._counts(np.asarray(without_stop))
    by_name = task.reward_answers(data.records, examples, written, counts, is_cut)
    return task.sum_rewards(by_name), by_name


def _listed(predictions: Predictions, examples: np.ndarray) -> tuple[tuple[int, str, int], ...]:
    columns = (examples, predictions["written"], predictions["tokens"])
    return tuple(zip(*map(np.ndarray.tolist, columns), strict=True))


def _rows_of(x_BGT: AnyArray) -> AnyArray:
    """Reshapes [B, G, T] to [B G, T]."""
    return x_BGT.reshape(-1, x_BGT.shape[-1])
