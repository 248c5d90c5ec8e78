"""VaultGemma: Gemma 2 without the norms after attention and feed-forward.

Reference: VaultGemma Team, "VaultGemma: A Differentially Private Gemma Model" (2025), section 3.
"""

import dataclasses
from functools import partial

from flaxformer_lite.models import gemma2
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.decoder import DecoderModel

BASE = gemma2.BASE | dict(norm_at=("in", "final"), max_length=1024, windows=(512, 0))
PRESETS = {
    "tiny": gemma2.PRESETS["tiny"],
    "1b": dict(
        d_model=1152, num_heads=4, num_kv_heads=4, head_dim=256, mlp_dim=6912, decoder_layers=26
    ),
}
config = partial(build_config, "vaultgemma", BASE, PRESETS, "1b")


class Model(DecoderModel):
    heads = ("lm", "none")


LAYER = tuple(row for row in gemma2.LAYER if "branch" not in str(row.ours))
BODY = llama_like.decoder_body(LAYER)
PUBLISHED = dataclasses.replace(
    gemma2.PUBLISHED,
    model_type="vaultgemma",
    defaults={**gemma2.PUBLISHED.defaults, "max_position_embeddings": 8192},
    names=lambda cfg: BODY,
    heads=llama_like.heads("VaultGemma", only=Model.heads),
)
