"""Numbers that another program has computed with the same weights."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.verify.finding import ROUNDING, Finding, relative_difference
from flaxformer_lite.contrib.verify.subject import Subject

FILES = ("inputs.npz", "outputs.npz")
MASKS = {True: "decoder_attention_mask", False: "attention_mask"}


def check_reference(subject: Subject, folder: str | Path) -> Iterator[Finding]:
    """Compares the outputs with those of a folder, padding aside.

    Args:
      subject: the model.
      folder: has inputs.npz, the arguments of the model by name, and outputs.npz, the fields of its
        output by name, such as `last_hidden_state` and `logits`.

    Raises:
      ConfigError: a file is missing or cannot be read, or has arrays that the model has not.
    """
    inputs, due = (_read(Path(folder) / name) for name in FILES)
    if subject.is_family:
        output = subject.model.apply({"params": subject.params}, **inputs)
        found = {name: getattr(output, name, None) for name in due}
    else:
        found = dict(subject.run(inputs))
    for name, value in due.items():
        if found.get(name) is None:
            raise ConfigError(f"{folder}/outputs.npz holds {name!r}, which the model has not.")
        got = np.asarray(found[name])
        if got.shape != value.shape:
            raise ConfigError(
                f"{folder}/outputs.npz: {name} has shape {value.shape}, and the model's"
                f" {got.shape}."
            )
        of_decoder = subject.reads_source and not name.startswith("encoder")
        mask = inputs.get(MASKS[of_decoder])
        if mask is not None and mask.shape == value.shape[:2]:
            got = got[mask != 0]
            value = value[mask != 0]
        yield Finding(f"reference: {name}", relative_difference(got, value), ROUNDING)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError) as error:
        raise ConfigError(
            f"{path}: cannot be read as numpy's .npz ({error}); tools/reference_outputs.py writes"
            " it."
        ) from None
