"""BERT, GPT and T5 in JAX/Flax: pure functions, thin linen modules, one command to train.

Everything users import by name is here; a name's module is loaded when the name is first asked for, so that importing
one function does not pay for a trainer.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOME = {
    "attentions.dispatch": ("attend", "attention"),
    "config": (
        "ConfigError",
        "Execution",
        "ExperimentConfig",
        "InitConfig",
        "LayerConfig",
        "LayerKind",
        "ModelConfig",
        "NormConfig",
        "StackConfig",
        "from_config_dict",
        "to_config_dict",
    ),
    "functions.kernels": ("kernel_weights", "pool"),
    "functions.deferred_logits": ("DeferredLogits",),
    "functions.losses": ("CrossEntropy", "cross_entropy"),
    "functions.masks": ("Mask", "causal", "dense", "full", "padding", "prefix", "segments", "window"),
    "functions.pooling": ("mean_pool",),
    "functions.rotary": ("Phase", "rotate"),
    "generation.generate": ("Generation", "generate", "stream"),
    "generation.score": ("Scores", "score"),
    "models": ("build_model",),
    "mixers.attention": ("Attention", "AttentionConfig"),
    "modules.block": ("Block",),
    "models.skeletons.parts": ("init_cache",),
    "modules.cache": ("init_stack_cache",),
    "modules.context": ("Context",),
    "modules.einsum": ("Einsum",),
    "modules.layout": ("stack_layers", "unstack_layers"),
    "feed_forwards.mlp": ("FeedForward", "MlpConfig"),
    "modules.norms": ("Norm",),
    "modules.stack": ("Stack",),
    "positions.rope": ("Rope",),
    "pretrained.load": ("load_labels", "load_pretrained"),
    "pretrained.save": ("save_pretrained",),
    "pretrained.tokenizer": ("load_tokenizer",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_MODULE_OF)

if TYPE_CHECKING:  # the same names, for editors and type checkers
    from flaxformer_lite.attentions.dispatch import attend as attend, attention as attention
    from flaxformer_lite.config import (
        ConfigError as ConfigError,
        Execution as Execution,
        ExperimentConfig as ExperimentConfig,
        InitConfig as InitConfig,
        LayerConfig as LayerConfig,
        LayerKind as LayerKind,
        ModelConfig as ModelConfig,
        NormConfig as NormConfig,
        StackConfig as StackConfig,
        from_config_dict as from_config_dict,
        to_config_dict as to_config_dict,
    )
    from flaxformer_lite.feed_forwards.mlp import FeedForward as FeedForward, MlpConfig as MlpConfig
    from flaxformer_lite.functions.deferred_logits import DeferredLogits as DeferredLogits
    from flaxformer_lite.functions.kernels import kernel_weights as kernel_weights, pool as pool
    from flaxformer_lite.functions.losses import (
        CrossEntropy as CrossEntropy,
        cross_entropy as cross_entropy,
    )
    from flaxformer_lite.functions.masks import (
        Mask as Mask,
        causal as causal,
        dense as dense,
        full as full,
        padding as padding,
        prefix as prefix,
        segments as segments,
        window as window,
    )
    from flaxformer_lite.functions.pooling import mean_pool as mean_pool
    from flaxformer_lite.functions.rotary import Phase as Phase, rotate as rotate
    from flaxformer_lite.generation.generate import Generation as Generation, generate as generate, stream as stream
    from flaxformer_lite.generation.score import Scores as Scores, score as score
    from flaxformer_lite.mixers.attention import Attention as Attention, AttentionConfig as AttentionConfig
    from flaxformer_lite.models import build_model as build_model
    from flaxformer_lite.models.skeletons.parts import init_cache as init_cache
    from flaxformer_lite.modules.block import Block as Block
    from flaxformer_lite.modules.cache import init_stack_cache as init_stack_cache
    from flaxformer_lite.modules.context import Context as Context
    from flaxformer_lite.modules.einsum import Einsum as Einsum
    from flaxformer_lite.modules.layout import stack_layers as stack_layers, unstack_layers as unstack_layers
    from flaxformer_lite.modules.norms import Norm as Norm
    from flaxformer_lite.modules.stack import Stack as Stack
    from flaxformer_lite.positions.rope import Rope as Rope
    from flaxformer_lite.pretrained.load import load_labels as load_labels, load_pretrained as load_pretrained
    from flaxformer_lite.pretrained.save import save_pretrained as save_pretrained
    from flaxformer_lite.pretrained.tokenizer import load_tokenizer as load_tokenizer


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
