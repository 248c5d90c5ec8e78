"""Arcee's AFM: Llama with a squared ReLU in place of the gate.

Reference: Arcee AI, "AFM-4.5B" (2025); So et al., "Primer" (2021, arXiv:2109.08668), for the
activation.
"""

from functools import partial

from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import omit_prefixes
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama_like.BASE | dict(
    vocab_size=128005,
    max_length=65536,
    mlp="plain",
    activation="relu_squared",
    position=Rope(),
)
PRESETS = {
    "tiny": llama_like.TINY,
    "4.5b": dict(d_model=2560, num_heads=20, num_kv_heads=4, mlp_dim=18432, decoder_layers=36),
}
config = partial(build_config, "arcee", BASE, PRESETS, "4.5b")
Model = llama_like.Model
LAYER = omit_prefixes(llama_like.LAYER, "mlp.gate_proj")
BODY = llama_like.decoder_body(LAYER)
PUBLISHED = llama_like.published(
    "arcee",
    BODY,
    defaults=dict(
        vocab_size=32000,
        num_hidden_layers=32,
        num_attention_heads=32,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
    ),
    heads=llama_like.heads("Arcee"),
    read=llama_like.read,
    write=llama_like.write,
)
