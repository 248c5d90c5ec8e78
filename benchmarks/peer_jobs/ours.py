"""This package. Runs are its command in a process of its own, with caches of their own."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.peer_jobs import (
    BATCH,
    BEAMS,
    LENGTH,
    LORA_BATCH,
    LORA_RANK,
    LORA_STEPS,
    NEW,
    STEPS,
    TEXTS,
    TOKENIZED,
    Case,
    Work,
    draw_dialogues,
    draw_prompts,
    draw_texts,
    write_labelled,
)


def load(case: Case) -> Work:
    import jax

    from flaxformer_lite import load_pretrained

    return lambda: jax.block_until_ready(load_pretrained(case.writer)[1])


def tokenize(case: Case) -> Work:
    from flaxformer_lite import load_tokenizer

    tokenizer = load_tokenizer(case.writer)
    texts = draw_texts(TOKENIZED)
    return lambda: [tokenizer.encode(text) for text in texts]


def embed(case: Case) -> Work:
    from flaxformer_lite import load_embedder

    embedder = load_embedder(case.embedder)
    texts = draw_texts(TEXTS)
    return lambda: embedder.encode(texts)


def predict(case: Case) -> Work:
    from flaxformer_lite.cli.predict import predicted_rows
    from flaxformer_lite.runs.evaluate_file import open_file, open_trained

    trained = open_trained(Path(case.classifier), batch_size=case.rows)
    folder = tempfile.mkdtemp()
    path = Path(folder) / "new.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in draw_texts(TEXTS)))

    def work() -> object:
        data = open_file(trained, path, predicts=True)
        _, predictions = trained.evaluate(data, scored=False)
        return predicted_rows(data, predictions)

    return work


def generate(case: Case, **settings: int) -> Work:
    from flaxformer_lite import generate as write, load_pretrained, prepare_weights

    overrides = {}
    if case.form == "int8":
        overrides["quantize"] = "int8"
    model, params = load_pretrained(case.writer, **overrides)
    params = prepare_weights(model, params)
    prompts = draw_prompts(case.rows)
    return lambda: np.asarray(write(model, params, prompts, max_new_tokens=NEW, **settings))


def beams(case: Case) -> Work:
    return generate(case, num_beams=BEAMS)


def run_command(*words: str) -> None:
    """Runs a command in a process of its own, with nothing kept from an earlier one."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "FLAXFORMER_LITE_CACHE": folder}
        command = [sys.executable, "-m", "flaxformer_lite", *words]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        if ran.returncode:
            raise RuntimeError(ran.stderr.strip().splitlines()[-1])


def train(*flags: str) -> Path:
    """Trains in a new folder, and returns it."""
    folder = Path(tempfile.mkdtemp())
    run_command("train", f"--workdir={folder}/run", f"--config.data.cache={folder}/data", *flags)
    return folder / "run"


def classify(case: Case) -> Work:
    path = Path(tempfile.mkdtemp()) / "rows.csv"
    write_labelled(path)
    return lambda: train(
        "--config=classify",
        f"--config.train.init_from={case.embedder}",
        f"--config.data.path={path}",
        f"--config.data.length={LENGTH}",
        f"--config.train.steps={STEPS}",
        f"--config.train.batch_size={BATCH}",
    )


def convert(case: Case) -> None:
    """Makes the classifier that all peers predict with, unless there is one."""
    if not Path(case.classifier).exists():
        run_command("convert", str(classify(case)()), case.classifier)


def lora(case: Case) -> Work:
    path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in draw_dialogues()))
    return lambda: train(
        "--config=instruct",
        f"--config.train.init_from={case.writer}",
        "--config.model.adapter.name=lora",
        f"--config.model.adapter.rank={LORA_RANK}",
        "--config.model.adapter.targets=('query', 'value')",
        f"--config.data.path={path}",
        f"--config.data.length={LENGTH}",
        f"--config.train.steps={LORA_STEPS}",
        f"--config.train.batch_size={LORA_BATCH}",
    )


JOBS = {
    "load": load,
    "tokenize": tokenize,
    "embed": embed,
    "predict": predict,
    "generate": generate,
    "beams": beams,
    "classify": classify,
    "lora": lora,
}
