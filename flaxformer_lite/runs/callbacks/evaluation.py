"""Evaluates on the held-out examples, shows what the model writes, and keeps the best weights."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import numpy as np

from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.inference.generate import generate
from flaxformer_lite.inference.prompts import ids_without_text
from flaxformer_lite.objectives.base import WritesText
from flaxformer_lite.runs.best import Selection
from flaxformer_lite.runs.callbacks.callback import Callback
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.experiment import Experiment, RunData
from flaxformer_lite.runs.report.reporting import Reporting
from flaxformer_lite.training.average import evaluated_params
from flaxformer_lite.training.evaluate import SHOWN_TEXTS, evaluate, show_texts
from flaxformer_lite.training.state import TrainState
from flaxformer_lite.types import Params

MAX_PROMPT_TOKENS = 32  # of held-out text that a sample continues; at most half of an example
CANDIDATE_EXAMPLES = 64  # examples among which is the one that the sample continues
SAMPLE_TEMPERATURE = 0.8
TOP_P = 0.95


class Evaluation(Callback):
    """Evaluates before the first step and every `train.eval_every` steps.

    Args:
      is_first: whether no start of the run has evaluated yet.
      selection: keeps the best weights, and ends a run that gets no better.
      checkpoints: of the whole state; none may be saved while one of the best is.
      meta: returns the record of a checkpoint of a step.
      alone: whether this process has no others beside it.
      followers: callbacks that are told of each evaluation, in their order.
    """

    def __init__(
        self,
        experiment: Experiment,
        selection: Selection,
        checkpoints: Checkpoints,
        meta: Callable[[int], Json],
        reporting: Reporting,
        *,
        is_first: bool,
        alone: bool,
        followers: Sequence[Callback] = (),
    ):
        self._experiment = experiment
        self._selection = selection
        self._checkpoints = checkpoints
        self._meta = meta
        self._reporting = reporting
        self._is_first = is_first
        self._alone = alone
        self._followers = followers

    def training_begins(self, step: int, state: TrainState) -> None:
        if self._is_first:
            params = state.params
            if step:
                # Before the first step, the average is still zeros.
                params = evaluated_params(state)
            self._evaluate(params, step)

    def is_due(self, step: int, ends: bool) -> bool:
        return self._experiment.is_due(step, self._experiment.cfg.train.eval_every)

    def act(self, step: int, state: TrainState) -> None:
        values = self._evaluate(evaluated_params(state), step)
        if self._selection.after(step, values):
            with self._reporting.working("checkpoint", "best checkpoint"):
                self._checkpoints.wait()  # one save at a time, as processes meet in each
                params = self._experiment.program.saved_params(evaluated_params(state))
                self._selection.save(step, params, self._meta(step))

    def ends_run(self, step: int) -> bool:
        return self._selection.stalled

    def remembered(self) -> Json:
        return {"best": self._selection.best._asdict()}

    def _evaluate(self, params: Params, step: int) -> dict[str, float]:
        run = self._experiment
        reporting = self._reporting
        work = "evaluation"
        if step:
            work = "evaluation of the average"
        try:
            with reporting.working("evaluation", work):
                evaluation = evaluate(
                    run.cfg.objective,
                    run.program.eval_step,
                    params,
                    run.eval_batches(),
                    run.eval_data,
                    run.writer(params),
                )
        except ConfigError as error:  # such as a reward that fails for what the model writes now
            raise RunError(f"evaluation after step {step}: {error}") from error
        values = evaluation.metrics
        texts = evaluation.texts or self._texts(params, step)
        record = {"step": step, "split": "eval", **values}
        reporting.recorder.add(record)
        if texts:
            reporting.recorder.add_sample(step, texts)
        reporting.recorder.write_breakdown(step, evaluation.breakdown)
        reporting.terminal.eval_record(record)
        self._selection.check(values)
        with reporting.clock.during("other"):
            for callback in self._followers:
                callback.evaluated(step, record)
        return values

    def _texts(self, params: Params, step: int) -> list[tuple[str, str]]:
        """Returns texts to show when the evaluation generated none.

        These are a decoder's sample, or at the end the outputs of a task.
        """
        run = self._experiment
        data = run.eval_data
        tokens = run.cfg.train.sample_tokens
        objective = run.cfg.objective
        wants_texts = tokens or step == run.cfg.train.steps
        if not step or not self._alone or not wants_texts:
            return []
        with self._reporting.working("evaluation", "texts"), self._reporting.optional("a sample"):
            if tokens and can_write(run.cfg.model):
                own = run.program.models.own_params(params)
                return sample_text(run.program.model, own, data, tokens=tokens, seed=run.cfg.seed)
            if not isinstance(objective, WritesText):
                return []
            examples = data.order[:SHOWN_TEXTS]
            written = objective.write(run.writer(params), data.records, examples)
            return show_texts(objective, written, examples, data)
        return []


def can_write(cfg: ModelConfig) -> bool:
    """Returns whether a model can continue a prompt: a decoder with logits over tokens."""
    return cfg.skeleton == "decoder" and cfg.head == "lm"


def sample_text(
    model: nn.Module, params: Params, data: RunData, *, tokens: int, seed: int
) -> list[tuple[str, str]]:
    """Continues the beginning of a held-out example.

    Args:
      tokens: number of tokens to write; fewer if the model's position table ends earlier.

    Returns:
      The texts of the prompt and of the continuation, each with a title.
    """
    cfg = model.cfg
    tokenizer = data.tokenizer
    prompt = choose_prompt(data)
    room = cfg.max_length - len(prompt) if cfg.has_position_table else tokens
    written = generate(
        model,
        params,
        prompt[None],
        max_new_tokens=min(tokens, room),
        eos_token_id=tokenizer.eos_id,
        seed=seed,
        temperature=SAMPLE_TEMPERATURE,
        top_p=TOP_P,
        suppress_tokens=ids_without_text(cfg, tokenizer),
    )
    texts = tokenizer.decode(prompt.tolist()), tokenizer.decode(written[0, len(prompt) :].tolist())
    return list(zip(("a held-out text begins", "the model goes on"), texts, strict=True))


def choose_prompt(data: RunData) -> np.ndarray:
    """Returns the beginning of the held-out example that begins with the most usual tokens, int32.

    The first one may be a table of constants, after which a model writes nothing worth reading.
    """
    prompts = []
    for number in range(min(CANDIDATE_EXAMPLES, data.num_examples)):
        ids = np.asarray(data.example(number, 0, 0)["inputs"]["input_ids"])
        prompts.append(ids[: min(MAX_PROMPT_TOKENS, -(-len(ids) // 2))])
    log_counts = np.log(np.maximum(1, np.bincount(np.concatenate(prompts))))
    return max(prompts, key=lambda ids: log_counts[ids].mean())
