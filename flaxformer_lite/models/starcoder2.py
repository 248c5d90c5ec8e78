"""StarCoder 2: grouped heads, layer norms, biases everywhere and a sliding window.

Reference: Lozhkov et al., "StarCoder 2 and The Stack v2: The Next Generation" (2024), section 6.
"""

from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields, omit_fields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.rope_fields import read_rope
from flaxformer_lite.models.weight_map import omit_prefixes, weight_rows
from flaxformer_lite.nn.positions.rope import Rope

ALL = ("query", "key", "value", "out", "mlp")
BASE = llama_like.BASE | dict(
    vocab_size=49152,
    max_length=16384,
    norm="layer",
    mlp="plain",
    activation="gelu_tanh",
    bias_at=ALL,
    windows=(4096,),
    position=Rope(base=999999.4420358813),  # as the published config.json of 3B has it
    tie_embeddings=True,
)
PRESETS = {  # table 6
    "tiny": dict(
        d_model=128, num_heads=4, num_kv_heads=2, mlp_dim=512, decoder_layers=4, windows=(64,)
    ),
    "3b": dict(d_model=3072, num_heads=24, num_kv_heads=2, mlp_dim=12288, decoder_layers=30),
    "7b": dict(
        d_model=4608,
        num_heads=36,
        num_kv_heads=4,
        mlp_dim=18432,
        decoder_layers=32,
        position=Rope(base=1000000.0),
    ),
}
config = partial(build_config, "starcoder2", BASE, PRESETS, "3b")
Model = llama_like.LabelingModel
MLP = weight_rows(("mlp.c_fc", "mlp/up"), ("mlp.c_proj", "mlp/down"))
LAYER = omit_prefixes(llama_like.LAYER, "mlp.") + MLP
BODY = llama_like.decoder_body(LAYER)
FIELDS = omit_fields(llama_like.FIELDS, "rms_norm_eps") | {"norm_epsilon": "norm_eps"}


def read(fields: Fields) -> ModelFields:
    return {
        "num_kv_heads": fields.get("num_key_value_heads", 2),
        "head_dim": fields.get("head_dim", 0),
        "windows": (fields.nullable("sliding_window", 0),),
        "position": read_rope(fields),
        "bias_at": ALL if fields.get("use_bias", True) else (),
    }


def write(cfg: ModelConfig) -> Json:
    return {
        **llama_like.write_heads(cfg),
        "sliding_window": cfg.windows[0] or None,
        "use_bias": "mlp" in cfg.bias_at,
    }


PUBLISHED = llama_like.published(
    "starcoder2",
    BODY,
    defaults=dict(max_position_embeddings=4096, rope_theta=10000.0),
    heads=llama_like.heads("Starcoder2", only=Model.heads),
    fields=FIELDS,
    harmless=("embedding_dropout", "mlp_type", "norm_type", "residual_dropout"),
    read=read,
    write=write,
)
