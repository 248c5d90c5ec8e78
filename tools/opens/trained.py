"""Fine-tunes real models by the command line, and keeps what the runs themselves say.

    python -m tools.opens.trained FOLDERS --writer=path/to/smollm2 --embedder=path/to/minilm

A chat model (SmolLM2, with LoRA that is merged), a classifier, a tagger and an embedder (MiniLM)
learn a few rows, are asked by `generate`, `predict` and `embed`, and are converted to the folders
that engines open.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from tools.opens.asked import ASKED, NEW_TOKENS, SENTENCES, TAGGED
from tools.opens.ours import expect

CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Peru": "Lima",
    "Norway": "Oslo",
    "Egypt": "Cairo",
}
FEELINGS = {
    "good": "I loved every minute of this {}.",
    "bad": "This {} was a waste of my time.",
}
THINGS = ("film", "book", "song", "meal", "game", "show", "trip", "play")


def command(*words: str | Path) -> str:
    """Runs a command of the package, and returns what it prints."""
    program = [sys.executable, "-m", "flaxformer_lite", *map(str, words)]
    return subprocess.run(program, check=True, text=True, stdout=subprocess.PIPE).stdout


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train(page: str, workdir: Path, start: Path, rows: list[dict], *flags: str) -> None:
    data = write_rows(workdir.with_suffix(".jsonl"), rows)
    command(
        "train",
        f"--config={page}",
        f"--workdir={workdir}",
        f"--config.train.init_from={start}",
        f"--config.data.path={data}",
        "--config.data.length=64",
        "--config.data.eval_fraction=0.2",
        "--config.train.batch_size=8",
        "--config.train.steps=30",
        "--config.train.eval_every=30",
        "--config.train.checkpoint_every=30",
        *flags,
    )


def publish(workdir: Path, kind: str, root: Path) -> Path:
    folder = root / "ours" / kind / "trained"
    folder.parent.mkdir(parents=True, exist_ok=True)
    command("convert", workdir, folder)
    return folder


def keep(folder: Path, said: object, **arrays: np.ndarray) -> None:
    folder.with_suffix(".json").write_text(json.dumps(said))
    np.savez(folder.with_suffix(".npz"), **arrays)


def chat(root: Path, writer: Path) -> None:
    rows = []
    for country, capital in CAPITALS.items():
        asked = {"role": "user", "content": f"What is the capital of {country}?"}
        answered = {"role": "assistant", "content": f"{capital}, of course!"}
        rows += 3 * [{"messages": [asked, answered]}]
    run = root / "runs/chat"
    lora = ("--config.model.adapter.name=lora", "--config.optimizer.learning_rate=1e-3")
    train("instruct", run, writer, rows, *lora)
    folder = publish(run, "causal", root)
    expect("causal", folder)
    found = json.loads(folder.with_suffix(".json").read_text())
    found["answers"] = []
    for question in ASKED:
        settings = ("--chat", "--temperature=0", f"--max_new_tokens={NEW_TOKENS}")
        said = command("generate", "--model", run, "--prompt", question, *settings)
        found["answers"].append(said.strip())
    folder.with_suffix(".json").write_text(json.dumps(found))


def classifier(root: Path, embedder: Path) -> None:
    rows = []
    for label, sentence in FEELINGS.items():
        rows += [{"text": sentence.format(thing), "label": label} for thing in THINGS]
    run = root / "runs/classifier"
    train("classify", run, embedder, 3 * rows, "--config.optimizer.learning_rate=3e-4")
    asked = write_rows(root / "runs/asked.jsonl", [{"text": text} for text in SENTENCES])
    said = root / "runs/predicted.jsonl"
    command("predict", "--model", run, "--data", asked, "--output", said)
    predicted = [json.loads(line) for line in said.read_text().splitlines()]
    keep(publish(run, "classifier", root), {"rows": predicted})


def tagger(root: Path, embedder: Path) -> None:
    rows = []
    for country, capital in CAPITALS.items():
        words = f"They flew to {capital} in {country} yesterday".split()
        tags = ["O", "O", "O", "B-CITY", "O", "B-COUNTRY", "O"]
        rows += 3 * [{"tokens": words, "tags": tags}]
    run = root / "runs/tagger"
    train("tag", run, embedder, rows, "--config.optimizer.learning_rate=5e-4")
    asked = write_rows(root / "runs/words.jsonl", [{"tokens": text.split()} for text in TAGGED])
    said = root / "runs/tagged.jsonl"
    command("predict", "--model", run, "--data", asked, "--output", said)
    predicted = [json.loads(line) for line in said.read_text().splitlines()]
    keep(publish(run, "tagger", root), {"rows": predicted})


def embedder_of(root: Path, embedder: Path) -> None:
    pairs = [
        {"anchor": f"capital of {country}", "positive": f"{capital} is the capital of {country}."}
        for country, capital in CAPITALS.items()
    ]
    run = root / "runs/embedder"
    train("sentences", run, embedder, 4 * pairs)
    vectors = root / "runs/vectors.npy"
    texts = [word for text in SENTENCES for word in ("--text", text)]
    command("embed", "--model", run, *texts, "--output", vectors)
    keep(publish(run, "embedder", root), {}, vectors=np.load(vectors))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", type=Path)
    parser.add_argument("--writer", type=Path, required=True)
    parser.add_argument("--embedder", type=Path, required=True)
    args = parser.parse_args()
    chat(args.folders, args.writer)
    classifier(args.folders, args.embedder)
    tagger(args.folders, args.embedder)
    embedder_of(args.folders, args.embedder)


if __name__ == "__main__":
    main()
