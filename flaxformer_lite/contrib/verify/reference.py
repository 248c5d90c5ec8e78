"""Numbers that another program has computed with the same weights."""

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.verify.finding import Finding, compare
from flaxformer_lite.contrib.verify.subject import Subject


def check_reference(subject: Subject, folder: str | Path) -> Iterator[Finding]:
    """Compares the outputs with those of a folder, padding aside.

    Args:
      subject: the model.
      folder: has inputs.npz, the arguments of the model by name, and outputs.npz, the fields of its
        output by name, such as `last_hidden_state` and `logits`.

    Raises:
      ConfigError: a file is missing or cannot be read, or has arrays that the model has not.
    """
    inputs, due = (_read(Path(folder) / name) for name in ("inputs.npz", "outputs.npz"))
    output = subject.model.apply({"params": subject.params}, **inputs)
    for name, value in due.items():
        found = getattr(output, name, None)
        if name == "logits" and isinstance(output, jax.Array):
            found = output
        if found is None:
            raise ConfigError(f"{folder}/outputs.npz holds {name!r}, which the model has not.")
        got = np.asarray(found)
        if got.shape != value.shape:
            raise ConfigError(
                f"{folder}/outputs.npz: {name} has shape {value.shape}, and the model's"
                f" {got.shape}."
            )
        of_decoder = subject.reads_source and not name.startswith("encoder")
        mask = inputs.get("decoder_attention_mask" if of_decoder else "attention_mask")
        if mask is not None and mask.shape == value.shape[:2]:
            is_read = mask != 0
            got = got[is_read]
            value = value[is_read]
        yield compare(f"reference: {name}", got, value)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, EOFError, AttributeError) as error:
        raise ConfigError(
            f"{path}: cannot be read as numpy's .npz ({error}); tools/reference_outputs.py writes"
            " it."
        ) from None
