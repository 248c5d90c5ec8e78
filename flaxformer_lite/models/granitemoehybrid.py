"""Granite 4, where all layers have attention: Granite with other names, and positions or none.

Mamba layers and experts, which most sizes have, are refused.
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import granite
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields, omit_fields, read_types
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import omit_prefixes, weight_rows
from flaxformer_lite.nn.positions.nope import Nope
from flaxformer_lite.nn.positions.rope import Rope

BASE = granite.BASE | dict(vocab_size=100352, max_length=131072, position=Rope(base=1e7))
PRESETS = {
    "tiny": granite.PRESETS["tiny"],
    "micro": dict(  # of ibm-granite/granite-4.0-micro
        d_model=2560, num_heads=40, num_kv_heads=8, mlp_dim=8192, decoder_layers=40
    ),
}
config = partial(build_config, "granitemoehybrid", BASE, PRESETS, "micro")
Model = granite.Model
LAYER = omit_prefixes(llama_like.LAYER, "mlp.") + weight_rows(
    ("shared_mlp.input_linear", ("mlp/gate", "mlp/up"), "2OI"),
    ("shared_mlp.output_linear", "mlp/down"),
)
BODY = llama_like.decoder_body(LAYER)


def read(fields: Fields) -> ModelFields:
    layers = fields.get("num_hidden_layers", 32)
    read_types(fields, ("attention", "full_attention"), ["mamba"] * layers)
    made = granite.read(fields)
    if fields.get("position_embedding_type", "") != "rope":
        made["position"] = Nope()
    return made


def write(cfg: ModelConfig) -> Json:
    fields: Json = {"layer_types": ["attention"] * cfg.decoder_layers, "num_local_experts": 0}
    fields["mamba_n_heads"] = 1  # of layers that it has not; transformers' 128 must divide a width
    if isinstance(cfg.position, Nope):
        return granite.write(dataclasses.replace(cfg, position=Rope())) | fields
    return granite.write(cfg) | fields | {"position_embedding_type": "rope"}


PUBLISHED = dataclasses.replace(
    granite.PUBLISHED,
    model_type="granitemoehybrid",
    defaults={**granite.PUBLISHED.defaults, "num_local_experts": 8},
    names=lambda cfg: BODY,
    heads=llama_like.heads("GraniteMoeHybrid", only=Model.heads),
    fields=omit_fields(granite.FIELDS, "intermediate_size")
    | dict(shared_intermediate_size="mlp_dim"),
    fixed={"num_local_experts": 0},
    harmless=(
        "intermediate_size",
        "mamba_chunk_size",
        "mamba_conv_bias",
        "mamba_d_conv",
        "mamba_d_head",
        "mamba_d_state",
        "mamba_expand",
        "mamba_n_groups",
        "mamba_n_heads",
        "mamba_proj_bias",
        "num_experts_per_tok",
        "output_router_logits",
        "router_aux_loss_coef",
        "time_step_limit",
    ),
    read=read,
    write=write,
)
