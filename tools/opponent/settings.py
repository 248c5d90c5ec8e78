"""A tiny experiment that is cheap to check, and the text that it reads."""

import json
from pathlib import Path

PAGES = ("gpt2_tiny", "bert_tiny", "t5_tiny", "llama_tiny")
SMALL = {
    "data.length": 32,
    "data.eval_fraction": 0.1,
    "data.tokenizer.name": "bytes",
    "model.vocab_size": 0,
    "model.d_model": 16,
    "train.batch_size": 8,
    "mesh.data": 1,
}
RUN = SMALL | {
    "model.mlp_dim": 32,
    "model.decoder_layers": 1,
    "train.log_every": 1,
    "train.eval_every": 1000,
    "train.eval_batches": 1,
    "train.checkpoint_every": 2,
    "train.keep": 3,
    "train.sample_tokens": 0,
    "optimizer.schedule": "constant",
}


def text(folder: Path) -> Path:
    """Writes a few kilobytes of jsonl, once."""
    path = folder / "text.jsonl"
    if not path.exists():
        path.write_text(
            "".join(json.dumps({"text": f"{n}: {n * n} {n**3} " * 20}) + "\n" for n in range(120))
        )
    return path


def arguments(page: str, values: dict) -> list[str]:
    """Returns the command line of a page with these fields."""
    return [f"--config={page}", *(f"--config.{name}={value}" for name, value in values.items())]


def check(argv: list[str], workdir: Path | None = None):
    """Does everything that `train` does before it compiles, and returns the experiment; ends as it
    does if it cannot."""
    from flaxformer_lite.cli import command_line
    from flaxformer_lite.config import ConfigError
    from flaxformer_lite.runs.start.adopt import read_experiment
    from flaxformer_lite.runs.start.setup import prepare_experiment
    from flaxformer_lite.runtime import invocation

    try:
        return prepare_experiment(
            read_experiment(command_line.config(argv), workdir, invocation.fields_given(argv))
        )
    except (ConfigError, OSError) as error:
        command_line.fail(error, command_line.BAD_INPUT)
