"""Llama: a decoder with RMS norms, gated SiLU, rotary positions and grouped-query attention.

Reference: Touvron et al., "LLaMA" (2023), section 2.2; "Llama 2" (2023), section 2.2; Grattafiori
et al., "The Llama 3 Herd of Models" (2024), section 3.2.
"""

from functools import partial

from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.nn.positions.rope import Rope

BASE = llama_like.BASE
Model = llama_like.Model

LLAMA3 = dict(vocab_size=128256, max_length=8192, position=Rope(base=500000.0))
PRESETS = {
    "tiny": llama_like.TINY,
    # TinyLlama's sizes
    "1b": dict(d_model=2048, num_heads=32, num_kv_heads=4, mlp_dim=5632, decoder_layers=22),
    "7b": dict(d_model=4096, num_heads=32, mlp_dim=11008, decoder_layers=32),
    "llama2_70b": dict(
        d_model=8192,
        num_heads=64,
        num_kv_heads=8,
        mlp_dim=28672,
        decoder_layers=80,
        max_length=4096,
    ),
    "llama3_8b": LLAMA3
    | dict(d_model=4096, num_heads=32, num_kv_heads=8, mlp_dim=14336, decoder_layers=32),
    "llama3_70b": LLAMA3
    | dict(d_model=8192, num_heads=64, num_kv_heads=8, mlp_dim=28672, decoder_layers=80),
}
config = partial(build_config, "llama", llama_like.BASE, PRESETS, "7b")


PUBLISHED = llama_like.published(
    "llama",
    heads=llama_like.heads("Llama"),
    fixed={"rope_interleaved": False},
    harmless=("is_llama_config", "max_sequence_length"),
    read=llama_like.read,
    write=llama_like.write,
)
