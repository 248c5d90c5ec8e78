"""Stores torch transformers' training loss of the families that have experts.

    PYTHON tools/make_router_fixtures.py

PYTHON is one that has transformers. Each family's model is that of tests/pretrained/families with
the recipe's weights, its inputs are padded, and its loss is that of labels: with the losses of the
router off, as published files have it, and on. tests/pretrained/test_router_losses.py compares.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "tools")]

import scoreboard  # noqa: E402

from tests.pretrained import recipe, router_losses  # noqa: E402


def main() -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    losses = {stem: losses_of(stem) for stem in router_losses.FAMILIES}
    router_losses.STORED.write_text(json.dumps(losses, indent=1) + "\n")


def losses_of(stem: str) -> dict[str, float]:
    """Returns the loss of a family's first draw by whether its router has losses."""
    import transformers

    family = router_losses.family(stem)
    (architecture,) = family["config"]["architectures"]
    head = family.get("head", "lm")
    found = {}
    for name, changes in router_losses.CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "0"
            draw = family["draws"][0]
            scoreboard.make(architecture, stem, family, draw, head, made)
            path = made / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | changes))
            model = scoreboard.read(getattr(transformers, architecture), made)
            found[name] = loss_of(model, changes["output_router_logits"])
    return found


def loss_of(model: Any, asked: bool) -> float:
    import torch

    seq2seq = model.config.is_encoder_decoder
    given = recipe.inputs(model.config.vocab_size, model.config.pad_token_id, seq2seq=seq2seq)
    given["labels"] = router_losses.labels(given)
    options = {}
    if "SwitchTransformers" in type(model).__name__:  # which reads no field for it
        options["output_router_logits"] = asked
    with torch.no_grad():
        tensors = {key: torch.tensor(np.asarray(x)).long() for key, x in given.items()}
        return float(model(**tensors, **options).loss)


if __name__ == "__main__":
    main()
