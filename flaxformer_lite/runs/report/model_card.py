"""The model card (README.md) of published weights and of a run's workdir."""

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import flaxformer_lite
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.checkpoints.manager import first_line
from flaxformer_lite.config import ExperimentConfig, ModelConfig, plugin_name
from flaxformer_lite.files.publish import write_file
from flaxformer_lite.files.read import Json, read_bytes, read_object
from flaxformer_lite.model_folder import on_disk
from flaxformer_lite.objectives.tables.breakdown import cell_text
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.runs.report.page import render_template
from flaxformer_lite.storage import hub

FILE = "README.md"
NO_LICENSE = "README.md states no license; write it in its first lines."
MAX_CARD_BYTES = 1 << 20  # most bytes of the card of a base model
TASKS = {  # of the Hub, by head
    "lm": "text-generation",
    "masked_lm": "fill-mask",
    "pretraining": "fill-mask",
    "sequence_classification": "text-classification",
    "token_classification": "token-classification",
    "question_answering": "question-answering",
    "multiple_choice": "multiple-choice",
}
SENTENCE_TASKS = {"SentenceTransformer": "sentence-similarity", "CrossEncoder": "text-ranking"}
AUTO_CLASSES = {  # of transformers, by head
    "lm": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "pretraining": "AutoModelForPreTraining",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
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
MOST_LABELS = 50  # most labels that a card lists
INHERITED = re.compile(r"^(?:license|language)\w*:[^\n]*(?:\n[ -][^\n]*)*", re.M)
MARK = "<!-- made by flaxformer_lite, "  # and a digest of all above it
Rows = list[tuple[str, object]]


class CardSource(NamedTuple):
    """The sources of a card, beside the model.

    Attributes:
      base: ORG/NAME of the model that it was made from, if that is on the Hub.
      base_folder: the folder of that model, whose own card may state its license and language.
      run: the workdir of the run that trained it.
      labels: the names of its classes.
      kind: the library that the files are for: "transformers", "peft" of an adapter,
        "sentence-transformers", or "flaxformer_lite" of a workdir.
      allow_plugins: as in `load_pretrained`, for the run.
    """

    base: str = ""
    base_folder: Path | None = None
    run: Path | None = None
    labels: Sequence[str] = ()
    kind: str = "transformers"
    allow_plugins: bool = False


def make_card(place: str, cfg: ModelConfig, count: int, source: CardSource) -> str:
    """Makes a card from templates/model_card.md.

    Paths of data are shortened to their last names, as a card is public.

    Args:
      place: the folder of the model, or its address, hf://ORG/NAME.
      cfg: the config of the model.
      count: its number of parameters.
      source: what else is known.
    """
    name = _last_name(place.rstrip("/"))
    ours = name  # the folders above it are of one machine
    theirs = name
    if hub.is_hub(place):
        ours = place
        theirs = hub.name_of(place)
        name = theirs.partition("/")[2]
    sentence_class = "SentenceTransformer"
    if cfg.head == "sequence_classification":  # a score of two texts
        sentence_class = "CrossEncoder"
    task = TASKS.get(cfg.head)
    auto_class = AUTO_CLASSES.get(cfg.head, "AutoModel")
    if cfg.head == "lm" and cfg.skeleton == "encoder_decoder":
        task = "text2text-generation"
        auto_class = "AutoModelForSeq2SeqLM"
    if source.kind == "sentence-transformers":
        task = SENTENCE_TASKS[sentence_class]
    inherited = _inherited(source.base_folder)
    text = render_template(
        "model_card.md",
        title=name,
        ours=ours,
        theirs=theirs,
        kind=source.kind,
        base=source.base,
        inherited=inherited,
        states_license=any(line.startswith("license:") for line in inherited),
        task=task,
        auto_class=auto_class,
        sentence_class=sentence_class,
        cfg=cfg,
        count=f"{count:,}",
        version=flaxformer_lite.__version__,
        labels=_labels(source.labels),
        sizes=[(field, getattr(cfg, field)) for field in ARCHITECTURE if getattr(cfg, field)],
        run=_describe_run(source),
    )
    return f"{text}{MARK}{_digest(text)} -->\n"


def add_card(
    folder: Path,
    place: str,
    cfg: ModelConfig,
    count: int,
    begun: str,
    source: CardSource,
    notify: Callable[[str], None],
) -> str:
    """Writes the card of a model beside its files, and returns it.

    One that fails is left out, as the files are worth more.

    Args:
      folder: where the files are.
      place, cfg, count: as in `make_card`.
      begun: the directory or address that the model was made from; "" for none.
      source: what else is known.
      notify: told why there is no card.
    """
    try:
        if hub.is_hub(begun):
            source = source._replace(base=hub.name_of(begun))
        if begun and source.base_folder is None:
            source = source._replace(base_folder=on_disk(begun, weights=False))
        card = make_card(place, cfg, count, source)
        write_card(folder, card)
    except Exception as error:
        notify(f"{place}: no model card ({first_line(error)})")
        return ""
    return card


def write_card(folder: Path, card: str) -> bool:
    """Writes a card, unless a person has written or changed the one that is there.

    Returns:
      Whether it was written.
    """
    path = folder / FILE
    if path.exists():
        text, mark, rest = path.read_text(encoding="utf-8", errors="replace").rpartition(MARK)
        if not mark or rest != f"{_digest(text)} -->\n":
            return False
    write_file(path, card.encode())
    return True


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _describe_run(source: CardSource) -> Json:
    """Returns what the card says of the run that trained the model, if there is one."""
    if source.run is None:
        return {}
    trained = workdir.read_config(source.run, allow_plugins=source.allow_plugins)
    return {
        "objective": plugin_name(trained.objective),
        "datasets": _datasets(trained),
        "data": _data(trained),
        "metrics": _metrics(source.run, trained),
        "classes": _class_scores(source.run),
        "training": _training(trained),
    }


def _datasets(trained: ExperimentConfig) -> list[str]:
    """Returns the names of the Hub's datasets that a run was trained on."""
    data = trained.data
    paths = [data.path, *(source.path for source in data.mixture.values())]
    addresses = [path.strip() for path in ",".join(paths).split(",")]
    names = [hub.read_address(address).name for address in addresses if hub.is_hub(address)]
    return list(dict.fromkeys(names))


def _inherited(folder: Path | None) -> list[str]:
    """Returns the lines about license and language of the card of the model it was made from."""
    if folder is None or not (folder / FILE).is_file():
        return []
    text = read_bytes(folder / FILE, limit=MAX_CARD_BYTES).decode("utf-8-sig", errors="replace")
    text = text.replace("\r\n", "\n")
    front = re.match(r"---\n(.*?)\n---\n", text, re.S)
    if front is None:
        return []
    return [found[0] for found in INHERITED.finditer(front[1])]


def _labels(names: Sequence[str]) -> str:
    """Lists labels as they can stand between backticks on one line."""
    listed = []
    for name in names[:MOST_LABELS]:
        in_code = " ".join(name.replace("`", "'").split())
        listed.append(f"`{in_code}`")
    shown = ", ".join(listed)
    if len(names) > MOST_LABELS:
        shown += f" and {len(names) - MOST_LABELS} more"
    return shown


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
    baseline = workdir.read_baseline_score(run)
    if baseline:
        headline = trained.objective.shown[0]
        rows.append((f"{headline.words} of {baseline[0]}", headline.show(baseline[1])))
    return rows


def _class_scores(run: Path) -> Json:
    """Returns the scores of each class, of the step whose weights are written."""
    kept = workdir.newest_first(run, "best") or workdir.newest_first(run, "checkpoints")
    path = run / metrics.BREAKDOWN
    if not kept or not path.is_file():
        return {}
    written = read_object(path, {"step": int, "tables": list})
    if written.get("step") != int(kept[0].name):
        return {}
    for title, head, rows in written["tables"]:
        if title.startswith("scores per "):
            shown = []
            for name, *values in rows[:MOST_LABELS]:
                in_cell = _labels([str(name)]).replace("|", "\\|")
                shown.append([in_cell, *map(cell_text, values)])
            return {"head": head, "rows": shown}
    return {}


def _training(trained: ExperimentConfig) -> Rows:
    train = trained.train
    rows: Rows = [
        ("objective", plugin_name(trained.objective)),
        ("steps", f"{train.steps:,}"),
        ("batch", train.batch_size),
        ("optimizer", trained.optimizer.name),
        ("learning rate", trained.optimizer.learning_rate),
        ("seed", trained.seed),
    ]
    if train.init_from:
        begun = train.init_from
        rows.append(("started from", _last_name(begun)))
    return rows


def _last_name(path: str) -> str:
    """Returns the names of files without their folders, which are of one machine.

    Args:
      path: of a file or folder, or several separated by commas; addresses of the Hub stay whole.
    """
    names = []
    for part in path.split(","):
        part = part.strip()
        if not hub.is_hub(part):
            part = part.rstrip("/").rpartition("/")[2]
        names.append(part)
    return ", ".join(names)
