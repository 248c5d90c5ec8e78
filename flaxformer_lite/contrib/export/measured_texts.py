"""Measures on texts how much an exported model loses with weights in float16 or int8."""

import argparse
from collections.abc import Sequence

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.open_model import Opened
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.export.cost import measure_cost
from flaxformer_lite.contrib.export.folder import Exported, open_files
from flaxformer_lite.inference.embed import limit_of, token_rows
from flaxformer_lite.pretrained.sentences import SentenceLayers

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "How fast does light travel?",
    "Light travels about 300,000 kilometers in a second, which is seven times around the Earth.",
)
MOST = 256  # texts on which the cost is measured


def read_texts(args: argparse.Namespace) -> Sequence[str]:
    """Returns the first lines of --data, or else TEXTS.

    Raises:
      ConfigError: the file cannot be read, or has no text.
    """
    if args.data is None:
        return TEXTS
    lines = command_line.read_text(args.data, f"--data={args.data}").splitlines()
    texts = [line for line in lines if line.strip()][:MOST]
    if not texts:
        raise ConfigError(f"--data={args.data}: has no text; name a file with one on each line.")
    return texts


def cost_of(
    args: argparse.Namespace,
    opened: Opened,
    layers: SentenceLayers | None,
    exported: Exported,
    texts: Sequence[str],
) -> str:
    """Returns a line about the loss of accuracy by --weights; "" for float32."""
    if args.weights == "float32":
        return ""
    limit = limit_of(layers or SentenceLayers(), opened)
    rows = [row for row in token_rows(opened, texts, limit) if row]
    if not rows:
        raise ConfigError(f"--data={args.data}: the tokenizer makes no token of any text.")
    cost = measure_cost(
        exported.programs,
        opened.params,
        open_files(exported.files),
        rows,
        head=opened.cfg.head,
        start=opened.cfg.decoder_start_token_id or 0,
    )
    return f"cost of {args.weights}: {cost}"
