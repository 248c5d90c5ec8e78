"""Names that trainers add to those of transformers when they save a model in its wrappers."""

import logging
import re
from collections.abc import Mapping

from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

LOG = logging.getLogger("flaxformer_lite")
# torch.compile, FSDP and recomputed activations wrap any module; DDP, and TRL's model with a value
# head, the whole one.
WRAPPERS = re.compile(
    r"^(module|pretrained_model)\.|\b_(orig_mod|fsdp_wrapped_module|checkpoint_wrapped_module)\."
)
VALUE_HEAD = "v_head."  # of TRL's PPO, beside a language model that is whole without it


def strip_wrappers(tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Returns tensors by the names they have without wrappers, and without a value head.

    Raises:
      WeightsError: two tensors have one name then.
    """
    stripped: dict[str, Tensor] = {}
    for full, tensor in tensors.items():
        name = WRAPPERS.sub("", full)
        if name in stripped:
            raise WeightsError(f"{where}: {full} is a second {name}; remove one.")
        stripped[name] = tensor
    kept = {name: tensor for name, tensor in stripped.items() if not name.startswith(VALUE_HEAD)}
    if len(kept) < len(stripped):
        LOG.warning("%s: a value head of reinforcement learning is left out.", where)
    return kept
