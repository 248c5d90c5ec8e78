"""Measures what rows that documents share save a ModernBERT: padding, tokens a second, and loss.

    python -m benchmarks.unpadded                       # both, 200 steps each
    python -m benchmarks.unpadded --paragraphs          # on short documents
    python -m benchmarks.unpadded --steps=20            # to see that it runs

Trains configs/modernbert_tiny.py as it is, and with each piece of a document in a row of its own,
for the same number of steps of the same shape; with --paragraphs, on the paragraphs of docstrings,
each a document. Both are judged on the same held-out text in shared rows. Time is that of the
processor (user and system), which other programs disturb little.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pretraining import SHORTEST, labelled
from flaxformer_lite import pages
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.objectives.row_plans import RowPlan, cut_documents
from flaxformer_lite.objectives.rows import Tokenizer
from flaxformer_lite.objectives.text.masked_lm import MaskedLm
from flaxformer_lite.runs.evaluate_file import open_trained
from flaxformer_lite.runs.start.adopt import read_experiment

PAGE = "modernbert_tiny"
ROWS = 500  # of which padding is counted
SHORT = 10  # steps of a run whose time is that of starting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alone(MaskedLm):
    """Masked language modeling with one piece of a document in each row, and padding behind it."""

    def plan_rows(
        self,
        offsets: Mapping[str, np.ndarray],
        length: int,
        target_length: int,
        tokenizer: Tokenizer,
        *,
        shift: float = 0.0,
    ) -> RowPlan:
        return cut_documents(offsets["ids"], length - 2, minimum=2, shift=shift)


KINDS = {"packed": "masked_lm", "padded": "benchmarks.unpadded:Alone"}


def write_paragraphs(path: Path) -> str:
    """Writes the paragraphs of docstrings, each a document, and returns where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for docstring, _ in labelled():
            for paragraph in docstring.split("\n\n"):
                if len(paragraph) >= SHORTEST:
                    file.write(json.dumps({"text": paragraph}) + "\n")
    return str(path)


def filled(kind: str, corpus: str) -> float:
    """Returns the share of the columns of training rows that hold a token."""
    config = pages.get_config(PAGE)
    config.objective.name = KINDS[kind]
    config.data.path = corpus
    data = open_dataset(read_experiment(config))
    counts = [
        np.mean(data.example(row, 0, 0)["inputs"]["segment_ids"] > 0)
        for row in range(min(ROWS, data.num_examples))
    ]
    return float(np.mean(counts))


def trained(kind: str, steps: int, workdir: Path, corpus: str) -> float:
    """Trains, and returns the seconds of processor time that it took."""
    flags = [
        f"--config={PAGE}",
        f"--workdir={workdir}",
        f"--config.objective.name={KINDS[kind]}",
        f"--config.train.steps={steps}",
        f"--config.train.eval_every={steps}",
        f"--config.train.checkpoint_every={steps}",
    ]
    if corpus:
        flags.append(f"--config.data.path={corpus}")
    workdir.parent.mkdir(parents=True, exist_ok=True)
    with workdir.with_suffix(".log").open("w") as log:
        command = [sys.executable, "-m", "flaxformer_lite", "train", "--allow-plugins", *flags]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{kind}: failed; see {workdir.with_suffix('.log')}")
    return usage.ru_utime + usage.ru_stime


def held_out(workdir: Path, corpus: str) -> float:
    """Returns a run's loss on held-out text in shared rows, in nats per masked token."""
    run = open_trained(workdir, allow_plugins=True)
    config = pages.get_config(PAGE)
    config.data.path = corpus
    data = open_dataset(read_experiment(config))
    metrics, _ = run.evaluate(dataclasses.replace(data, split="eval"))
    return metrics["nll"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--paragraphs", action="store_true", help="train on short documents")
    parser.add_argument("--out", type=Path, default=Path("runs/unpadded"))
    parser.add_argument("--kind", choices=KINDS, help="one of the two alone")
    args = parser.parse_args()
    corpus = write_paragraphs(args.out / "paragraphs.jsonl") if args.paragraphs else ""
    page = pages.get_config(PAGE)
    columns = page.data.length * page.train.batch_size
    results: dict[str, Any] = {}
    for kind in [args.kind] if args.kind else KINDS:
        share = filled(kind, corpus)
        start = trained(kind, SHORT, args.out / f"{kind}_start", corpus)
        seconds = trained(kind, args.steps, args.out / kind, corpus)
        tokens = share * columns * (args.steps - SHORT)
        results[kind] = {
            "padding": 1 - share,
            "tokens": round(share * columns * args.steps),
            "tokens_per_second": tokens / (seconds - start),
            "minutes": seconds / 60,
            "loss": held_out(args.out / kind, corpus),
        }
        print(kind, json.dumps(results[kind]), flush=True)
        (args.out / f"{kind}.json").write_text(json.dumps(results[kind], indent=2) + "\n")


if __name__ == "__main__":
    main()
