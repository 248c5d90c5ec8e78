"""The model card of weights that are pushed to the Hugging Face Hub."""

from collections.abc import Iterable
from pathlib import Path

import flaxformer_lite
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.config import ExperimentConfig, ModelConfig, plugin_name
from flaxformer_lite.files.read import Json
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.storage import hub

NO_LICENSE = "README.md states no license; write it in its first lines, on the Hub."
TASKS = {  # of the Hub, by head
    "lm": "text-generation",
    "masked_lm": "fill-mask",
    "pretraining": "fill-mask",
    "sequence_classification": "text-classification",
    "token_classification": "token-classification",
    "question_answering": "question-answering",
    "multiple_choice": "multiple-choice",
}
ARCHITECTURE = (
    "encoder_layers",
    "decoder_layers",
    "d_model",
    "num_heads",
    "num_kv_heads",
    "mlp_dim",
    "vocab_size",
    "max_length",
)
Rows = list[tuple[str, object]]


def card(
    address: str,
    cfg: ModelConfig,
    count: int,
    *,
    run: Path | None = None,
    base: str = "",
    allow_plugins: bool = False,
) -> str:
    """Writes a card: what the model is, its data, metrics and config; the license is left open.

    Paths are shortened to their last names, as the card is public.

    Args:
      address: hf://ORG/NAME.
      cfg: the config of the model.
      count: its number of parameters.
      run: the workdir of the run that trained it, if it has one.
      base: ORG/NAME of the model that it was made from, if that is on the Hub.
      allow_plugins: as in `load_pretrained`.
    """
    name = hub.name_of(address)
    head = ""
    if cfg.head != "none":
        head = f", with the head `{cfg.head}`"
    trained = None
    origin = ""
    if run is not None:
        trained = workdir.read_config(run, allow_plugins=allow_plugins)
        origin = f", trained by the objective `{_objective(trained)}`"
    lines = [
        *_front(cfg, base),
        f"# {name.partition('/')[2]}",
        "",
        f"A `{cfg.family}` of {count:,} parameters{head}{origin}. Written by flaxformer_lite"
        f" {flaxformer_lite.__version__}; transformers and flaxformer_lite read it.",
    ]
    if trained is not None and run is not None:
        lines += _section("Data", ("", ""), _data(trained))
        lines += _section("Metrics, held out", ("metric", "value"), _metrics(run, trained))
        lines += _section("Training", ("field", "value"), _training(trained))
    sizes: Rows = [(field, getattr(cfg, field)) for field in ARCHITECTURE if getattr(cfg, field)]
    lines += _section("Config", ("field", "value"), sizes)
    use = f'model, params = flaxformer_lite.load_pretrained("{address}")'
    lines += ["", "## Use", "", "```python", "import flaxformer_lite", "", use, "```", ""]
    return "\n".join(lines)


def _front(cfg: ModelConfig, base: str) -> list[str]:
    """Returns the lines that the Hub reads, as YAML."""
    lines = ["---", "# license:  # not stated; fill it in", "library_name: transformers"]
    task = TASKS.get(cfg.head)
    if cfg.head == "lm" and cfg.skeleton == "encoder_decoder":
        task = "text2text-generation"
    if task:
        lines.append(f"pipeline_tag: {task}")
    if base:
        lines.append(f"base_model: {base}")
    return [*lines, "tags:", "- flaxformer_lite", "- jax", "---", ""]


def _section(title: str, head: tuple[str, str], rows: Iterable[tuple[str, object]]) -> list[str]:
    shown = [f"| {name} | {value} |" for name, value in rows]
    if not shown:
        return []
    return ["", f"## {title}", "", f"| {head[0]} | {head[1]} |", "|---|---|", *shown]


def _objective(trained: ExperimentConfig) -> str:
    return plugin_name(trained.objective)


def _data(trained: ExperimentConfig) -> Rows:
    data = trained.data
    rows: Rows = []
    for source, part in data.mixture.items():
        rows.append((f"source {source}", _last_name(part.path)))
    if not data.mixture:
        rows.append(("trained on", _last_name(data.path) or f"the corpus {data.corpus}"))
    held_out = _last_name(data.eval_path) or f"a share of it, {data.eval_fraction:.1%}"
    rows += [("held out", held_out), ("tokens of an example", data.length)]
    return rows


def _metrics(run: Path, trained: ExperimentConfig) -> Rows:
    """Returns the evaluation of the step whose weights are written."""
    kept = workdir.newest_first(run, "best") or workdir.newest_first(run, "checkpoints")
    if not kept:
        return []
    step = int(kept[0].name)
    records = metrics.read(run / "metrics.jsonl")
    evaluations: list[Json] = []
    for record in records:
        if record["split"] == "eval" and record["step"] == step:
            evaluations.append(record)
    if not evaluations:
        return []
    rows: Rows = [("step", step)]
    for metric in trained.objective.shown:
        if metric.name in evaluations[-1]:
            rows.append((metric.words, metric.show(evaluations[-1][metric.name])))
    return rows


def _training(trained: ExperimentConfig) -> Rows:
    train = trained.train
    rows: Rows = [
        ("objective", _objective(trained)),
        ("steps", f"{train.steps:,}"),
        ("batch", train.batch_size),
        ("optimizer", trained.optimizer.name),
        ("learning rate", trained.optimizer.learning_rate),
        ("seed", trained.seed),
    ]
    if train.init_from:
        begun = train.init_from
        rows.append(("started from", begun if hub.is_hub(begun) else _last_name(begun)))
    return rows


def _last_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
