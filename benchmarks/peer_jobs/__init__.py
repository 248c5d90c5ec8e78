"""The jobs of benchmarks/peers.py: a module for each peer, whose JOBS has a function for each job.

A function takes a `Case`, imports and loads what it needs, and returns a function that does the job
once. It raises an ImportError where the peer cannot do it.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

PROMPT = 32  # tokens
NEW = 64  # tokens that are written
BEAMS = 4
VOCABULARY = 49000  # ids below it are tokens of SmolLM2
TEXTS = 400
TOKENIZED = 10_000  # texts
ROWS = 2000  # of a table to learn from
STEPS = 40  # of fine-tuning
BATCH = 16
LORA_STEPS = 10
LORA_BATCH = 4
LORA_RANK = 8
LORA_HELD_OUT = 11  # rows, as many as ours holds out of these by their hashes
LENGTH = 128  # tokens of a row, at most; those of LoRA have as many
WORDS = "the quick brown fox jumps over a lazy dog and rests in green grass near the old river bank"


class Case(NamedTuple):
    """The model, batch and threads of a job.

    Attributes:
      rows: at a time.
      form: of the weights, float32 or int8.
      threads: of the peer.
      writer: folder of SmolLM2.
      embedder: folder of all-MiniLM-L6-v2.
      classifier: folder of that model with a head that classifies.
    """

    rows: int
    form: str
    threads: int
    writer: str
    embedder: str
    classifier: str


Work = Callable[[], object]
Job = Callable[[Case], Work]


def draw_texts(count: int) -> list[str]:
    """Draws texts of about 47 tokens."""
    rng = np.random.default_rng(0)
    sizes = [max(3, int(size)) for size in rng.gamma(4, 11, count)]
    return [" ".join(rng.choice(WORDS.split(), size)) for size in sizes]


def draw_prompts(rows: int) -> np.ndarray:
    return np.random.default_rng(0).integers(3, VOCABULARY, (rows, PROMPT))


def write_labelled(path: Path) -> None:
    """Writes a table of texts, with a label that is a property of the text."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        for text in draw_texts(ROWS):
            table.writerow([text, ("few words", "many")[len(text.split()) > 40]])


def draw_dialogues() -> list[dict[str, str]]:
    """Draws prompts with answers that are longer than LENGTH together."""
    words = WORDS.split()
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(LORA_STEPS * LORA_BATCH * 2):
        prompt = " ".join(rng.choice(words, 8))
        rows.append({"prompt": prompt, "response": " ".join(rng.choice(words, 2 * LENGTH))})
    return rows
