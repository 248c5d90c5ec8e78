"""Folders that we write, read by sentence-transformers and PEFT: `make exports TORCH=PYTHON`.

    python -m tools.readers ours runs/readers      # writes folders, with what our models compute
    /torch/bin/python tools/readers.py theirs runs/readers

The second compares, and counts what the libraries say while they read. What transformers reads is
the table of docs/families.md (`make scoreboard`).
"""

import importlib.metadata
import json
import logging
import sys
import warnings
from pathlib import Path

import numpy as np

TEXTS = ["one two three", "naïve 日本 eleven", "four", "seven " * 40]
TOLERANCE = 1e-4
FIXTURES = Path(__file__).parents[1] / "tests/fixtures"


def ours(out: Path) -> None:
    from flaxformer_lite import load_pretrained, load_tokenizer, save_adapter
    from flaxformer_lite.cli.open_model import Opened
    from flaxformer_lite.inference.embed import embed
    from flaxformer_lite.pretrained.save import TrainedInputs, write_pretrained
    from flaxformer_lite.pretrained.sentences import SentenceLayers, read_sentence_layers
    from tests.cli import models

    kinds = {
        "mean": SentenceLayers(pooling="mean", limit=32),
        "first": SentenceLayers(pooling="first", limit=32),
        "sparse": SentenceLayers(kind="sparse", pooling="max", limit=32, similarity="dot"),
    }
    for name, layers in kinds.items():
        folder = out / "sentence_transformers" / name
        model, params = models.weights("bert", "masked_lm" if name == "sparse" else "none")
        inputs = TrainedInputs(models.tokenizer(), 32, sentence_layers=layers)
        folder.mkdir(parents=True)
        write_pretrained(folder, model, params, like=inputs)
        opened = Opened(*load_pretrained(folder), load_tokenizer(folder), folder)
        vectors = embed(opened, TEXTS, read_sentence_layers(folder))
        np.save(folder / "ours.npy", vectors.toarray() if name == "sparse" else vectors)
    ids = np.random.default_rng(0).integers(5, 40, (2, 9))
    for adapter in sorted((FIXTURES / "adapters").iterdir()):
        base = FIXTURES / adapter.name.partition("-")[0]
        if json.loads((adapter / "adapter_config.json").read_text())["peft_type"] != "LORA":
            continue
        model, params = load_pretrained(base, adapter=adapter)
        if model.cfg.skeleton == "encoder_decoder":
            continue
        folder = out / "peft" / adapter.name
        save_adapter(folder, model, params, base=str(base.resolve()))
        logits = model.apply({"params": params}, ids).logits
        np.savez(folder / "ours.npz", ids=ids, logits=np.asarray(logits))


def theirs(out: Path) -> int:
    readers = {"sentence_transformers": sentence_vectors, "peft": adapted_logits}
    print("| library | folder | largest difference | messages |\n|---|---|--:|--:|")
    worst = 0.0
    for library, read in readers.items():
        version = importlib.metadata.version(library.replace("_", "-"))
        for folder in sorted((out / library).iterdir()):
            said = Messages()
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                difference = read(folder)
            logging.getLogger().removeHandler(said)
            count = len(said.lines) + len(warned)
            print(f"| {library} {version} | {folder.name} | {difference:.1e} | {count} |")
            for line in [*said.lines, *(str(one.message) for one in warned)]:
                print(f"  {line[:200]}", file=sys.stderr)
            worst = max(worst, difference)
    return int(not worst <= TOLERANCE)


class Messages(logging.Handler):
    """Keeps the warnings that the libraries log."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        for name in ("transformers", "sentence_transformers", "peft"):
            logger = logging.getLogger(name)
            logger.propagate = True
            logger.handlers.clear()
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def sentence_vectors(folder: Path) -> float:
    from sentence_transformers import SentenceTransformer, SparseEncoder

    if folder.name == "sparse":
        vectors = SparseEncoder(str(folder), device="cpu").encode(TEXTS).to_dense().numpy()
    else:
        vectors = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    return float(np.abs(vectors - np.load(folder / "ours.npy")).max())


def adapted_logits(folder: Path) -> float:
    import torch
    import transformers
    from peft import PeftModel

    base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    (name,) = json.loads(Path(base, "config.json").read_text())["architectures"]
    model = getattr(transformers, name).from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, folder).eval()
    with np.load(folder / "ours.npz") as arrays, torch.no_grad():
        logits = model(torch.tensor(arrays["ids"])).logits.numpy()
        return float(np.abs(logits - arrays["logits"]).max())


if __name__ == "__main__":
    _, side, folder = sys.argv
    sys.exit({"ours": ours, "theirs": theirs}[side](Path(folder)))
