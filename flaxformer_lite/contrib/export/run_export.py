"""Writes a model as files that run without this package."""

import argparse
import json
from pathlib import Path

from flaxformer_lite.cli.open_model import Opened, open_model, print_warnings
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.export.folder import CASES, SUFFIXES, export_model
from flaxformer_lite.files.publish import check_writable, new_directory
from flaxformer_lite.inference.embed import limit_of, token_rows
from flaxformer_lite.model_details import load_labels, load_sentence_layers
from flaxformer_lite.pretrained.save import write_companions
from flaxformer_lite.pretrained.sentences import SentenceLayers
from flaxformer_lite.save_model import origin_of

TEXTS = (  # of the test cases
    "The quick brown fox jumps over the lazy dog.",
    "How fast does light travel?",
    "Light travels about 300,000 kilometers in a second, which is seven times around the Earth.",
)
LABELLED = ("sequence_classification", "token_classification")


def run(args: argparse.Namespace) -> None:
    """Writes the files, and prints a line for each."""
    _check_folder(args.output)
    check_writable(args.output.parent)
    opened = open_model(args.model, allow_plugins=args.allow_plugins)
    layers = _layers(args, opened.folder)
    with print_warnings():
        rows = token_rows(opened, TEXTS, limit_of(layers or SentenceLayers(), opened))
    with print_warnings(), new_directory(args.output.parent, carry=_is_kept) as made:
        write_companions(made, opened.model, like=origin_of(opened.model))
        tokenizer_config = made / "tokenizer_config.json"
        if not tokenizer_config.exists():  # transformers.js reads no tokenizer without it
            tokenizer_config.write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}\n')
        exported = export_model(
            made / args.output.name,
            opened.model,
            opened.params,
            layers=layers,
            weights=args.dtype,
            rows=[row for row in rows if row] or None,  # some tokenizers know none of our words
            metadata=_metadata(opened, args),
        )
        sizes = {program: file.stat().st_size / 1e6 for program, file in exported.files.items()}
    for program, file in exported.files.items():
        print(
            f"{args.output.with_name(file.name)}: {program}, {sizes[program]:,.1f} MB, largest"
            f" difference {exported.differences[program]:.1e}"
        )
        if args.dtype != "float32":
            print(f"cost of {args.dtype}: {exported.losses[program]:.1e} from float32")


def _is_kept(name: str) -> bool:
    """Returns whether a file is kept, as exports write no such file."""
    return Path(name.removesuffix(".data")).suffix not in SUFFIXES


def _check_folder(output: Path) -> None:
    """Refuses a folder with other files, some of which could be replaced.

    Raises:
      ConfigError: it holds something, and no earlier export to the same file.
    """
    folder = output.parent
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if names and CASES not in names:
        raise ConfigError(
            f"--output={output}: {folder} has other files ({names[0]}, ...), and config.json"
            " and a tokenizer are written beside the model; name a new folder, such as"
            f" exported/{output.name}."
        )
    own = {output.name}
    own |= {f"{output.stem}.{program}{output.suffix}" for program in ("encode", "decode")}
    others = [name for name in names if Path(name).suffix in SUFFIXES and name not in own]
    if others:
        raise ConfigError(
            f"--output={output}: {folder} holds {others[0]}, whose test cases would be replaced;"
            f" name a new folder, such as {folder}_{output.stem}/{output.name}."
        )


def _layers(args: argparse.Namespace, folder: Path) -> SentenceLayers | None:
    """Returns the layers of a sentence model, if the file is to have them."""
    if args.task == "encode":
        return None
    layers = load_sentence_layers(folder, allow_plugins=args.allow_plugins)
    is_sentence_model = layers != SentenceLayers()
    return layers if is_sentence_model or args.task == "embed" else None


def _metadata(opened: Opened, args: argparse.Namespace) -> dict[str, str]:
    cfg = opened.cfg
    described = {"family": cfg.family, "head": cfg.head, "weights": args.dtype}
    if cfg.head in LABELLED:
        labels = load_labels(opened.folder, allow_plugins=args.allow_plugins)
        described["labels"] = json.dumps(labels)
    return described
