"""Writes a page that fills masks, classifies or compares texts in a browser."""

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

import jax

from flaxformer_lite.cli import fill_mask
from flaxformer_lite.cli.open_model import Opened, open_named_model, print_warnings
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.export import page
from flaxformer_lite.contrib.export.folder import export_model
from flaxformer_lite.contrib.export.page import PageTask
from flaxformer_lite.contrib.export.programs import programs_of
from flaxformer_lite.contrib.export.weights import stored_as, widen_weights
from flaxformer_lite.files.publish import write_file
from flaxformer_lite.files.read import quote_name
from flaxformer_lite.inference.embed import limit_of
from flaxformer_lite.model_details import load_sentence_layers
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.pretrained.sentences import SentenceLayers
from flaxformer_lite.runs.evaluate_file import open_trained
from flaxformer_lite.text.tokenizer import HuggingFace

TEXTS = {  # the initial text of the page's input
    "fill": ("The capital of France is [MASK].",),
    "classify": ("I would watch this again tomorrow.",),
    "embed": (
        "How fast does light travel?",
        "Light travels about 300,000 kilometers in a second.",
        "The quick brown fox jumps over the lazy dog.",
    ),
}
# What tokenizers treat in different ways: cases, accents, scripts, emoji, invisible characters.
HARD = (
    "\u00c7a VA, \u0130stanbul? na\u00efve cafe\u0301 \u65e5\u672c\u8a9e"
    " \u0645\u0631\u062d\u0628\u0627 \ufb01ne\u00a0\u200b 3\u00d74=12\t\u2026"
    " \U0001f642\U0001f469\u200d\U0001f4bb"
)
ENDS = {"fill": " [MASK]"}


class Parts(NamedTuple):
    """A model and the task of its page; `layers` are those of a sentence model."""

    opened: Opened
    layers: SentenceLayers | None
    task: PageTask
    texts: list[tuple[str, list[int]]]  # of the page's check, each with its ids


def run(args: argparse.Namespace, folder: Path, layers: SentenceLayers | None) -> None:
    """Writes the page, and prints what it has.

    Args:
      args: of the command.
      folder: the model's directory on this machine.
      layers: those of a sentence model, if the page is to have them.
    """
    libraries = page.load_libraries(Path(args.runtime))
    with print_warnings():
        parts = _parts(args, folder, layers)
        opened = parts.opened
        stored = stored_as(args.weights, opened.params)
        page.check_size(stored)
        (program,) = programs_of(opened.model, parts.layers)
        with tempfile.TemporaryDirectory() as made:
            file = Path(made, "model.onnx")
            exported = export_model(
                file,
                opened.model,
                opened.params,
                layers=parts.layers,
                weights=args.weights,
                rows=[ids for _, ids in parts.texts],
            )
            model = file.read_bytes()
    count = sum(x.size for x in jax.tree.leaves(opened.params))
    rendered = page.render_page(
        model,
        parts.task,
        page.make_examples(program, widen_weights(stored), parts.task, parts.texts),
        libraries,
        output=page.output_of(program),
        title=Path(args.model).resolve().name,
        facts=f"{opened.cfg.family}, {count:,} weights in {args.weights}",
        text="\n".join(TEXTS[parts.task.task]),
    ).encode()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_file(args.output, rendered)
    (difference,) = exported.differences.values()
    print(
        f"{args.output}: {parts.task.task}, {len(rendered) / 1e6:,.1f} MB, largest difference"
        f" {difference:.1e}"
    )
    if args.weights != "float32":
        (loss,) = exported.losses.values()
        print(f"cost of {args.weights}: {loss:.1e} from float32")


def _parts(args: argparse.Namespace, folder: Path, layers: SentenceLayers | None) -> Parts:
    opened = open_named_model(args, args.head, folder)
    cfg = opened.cfg
    if layers is None and cfg.head in ("none", "encoder"):
        layers = load_sentence_layers(opened.folder, allow_plugins=args.allow_plugins)
    if layers is not None:
        return _embed(opened, layers)
    if cfg.head in fill_mask.HEADS and not cfg.decoder_layers:
        return _fill(opened)
    if cfg.head == "sequence_classification":
        return _classify(args, opened)
    raise ConfigError(
        f"family={cfg.family!r}, head={cfg.head!r}: a page fills masks, classifies or compares"
        " texts; write .onnx instead."
    )


def _fill(opened: Opened) -> Parts:
    tokenizer = opened.tokenizer
    if "mask" not in tokenizer.ids:
        raise ConfigError("this model's tokenizer has no mask token.")
    token = tokenizer.tokens["mask"]
    before, after = _around(opened)
    task = PageTask(
        task="fill",
        tokenizer=tokenizer.definition(),
        before=before,
        after=after,
        limit=opened.cfg.max_length if opened.cfg.has_position_table else None,
        cuts=False,
        words=tuple(
            quote_name(fill_mask.spelled(tokenizer, i)) for i in range(tokenizer.vocab_size)
        ),
        mask=(tokenizer.ids["mask"], token),
    )
    texts = [text.replace("[MASK]", token) for text in _texts("fill")]
    rows = [(text, tokenizer.encode(text)) for text in texts]
    short = [row for row in rows if task.limit is None or len(row[1]) <= task.limit]
    return Parts(opened, None, task, short)


def _embed(opened: Opened, layers: SentenceLayers) -> Parts:
    if layers.kind != "dense":
        raise ConfigError(
            f"a page compares dense vectors, and this model's are {layers.kind.replace('_', '-')};"
            " write .onnx instead."
        )
    tokenizer = opened.tokenizer
    limit = limit_of(layers, opened)
    before, after = _around(opened)
    task = PageTask(
        task="embed",
        tokenizer=tokenizer.definition(),
        before=before,
        after=after,
        limit=limit,
        side=tokenizer.truncation_side,
        prompt=layers.prompt(),
    )
    texts = [layers.prompt() + text for text in _texts("embed")]
    rows = [(text, tokenizer.encode(text, max_length=limit)) for text in texts]
    return Parts(opened, layers, task, rows)


def _classify(args: argparse.Namespace, opened: Opened) -> Parts:
    """Returns the parts of a classifier's page, which reads texts as `predict` does."""
    trained = open_trained(opened.folder, family=args.family, allow_plugins=args.allow_plugins)
    objective = trained.cfg.objective
    words = trained.tokenizer
    if not isinstance(objective, Classification) or not isinstance(words, HuggingFace):
        raise ConfigError(
            "a page classifies texts by a classifier of `classify` with a tokenizer.json; write"
            " .onnx instead."
        )
    frame = words.frame(opened.cfg.skeleton)
    limit = trained.cfg.data.length
    task = PageTask(
        task="classify",
        tokenizer=words.literal().to_str(),  # in which the spelling of special tokens is text
        before=frame.before,
        after=frame.after,
        limit=limit,
        side=frame.truncation_side,
        labels=objective.labels,
        kind=objective.kind,
    )
    rows = []
    for text in _texts("classify"):
        rows.append((text, frame.join_ids(words.encode(text), limit=limit).ids.tolist()))
    return Parts(opened, None, task, rows)


def _around(opened: Opened) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the special tokens before and after a text."""
    inside = opened.tokenizer.encode("a", special_tokens=False)
    ids = opened.tokenizer.encode("a")
    starts = range(len(ids) - len(inside) + 1)
    start = next(i for i in starts if ids[i : i + len(inside)] == inside)
    return tuple(ids[:start]), tuple(ids[start + len(inside) :])


def _texts(task: str) -> list[str]:
    """Returns the texts on which a page is checked."""
    return [*TEXTS[task], HARD + ENDS.get(task, "")]
