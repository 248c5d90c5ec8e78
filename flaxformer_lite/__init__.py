"""BERT, GPT and T5 in JAX/Flax: pure functions, thin linen modules, one command to train.

Everything users import by name is here; a name's module is loaded when the name is first asked for, so that importing one
function does not pay for a trainer.
"""

import importlib

__version__ = "0.1.0"

_HOME = {
    "attentions.dispatch": ("attend", "attention"),
    "config": ("ConfigError", "ExperimentConfig", "ModelConfig", "from_config_dict", "to_config_dict"),
    "functions.kernels": ("kernel_weights", "pool"),
    "functions.losses": ("CrossEntropy", "DeferredLogits", "cross_entropy"),
    "functions.masks": ("Mask", "causal", "full", "padding", "prefix", "segments", "window"),
    "functions.pooling": ("mean_pool",),
    "functions.rotary": ("Phase", "rotate"),
    "generation.generate": ("Generation", "generate", "stream"),
    "generation.score": ("Scores", "score"),
    "models": ("build_model",),
    "modules.attention": ("Attention",),
    "modules.block": ("Block",),
    "modules.cache": ("init_cache",),
    "modules.context": ("Context",),
    "modules.einsum": ("Einsum",),
    "modules.layout": ("stack_layers", "unstack_layers"),
    "modules.feed_forward": ("FeedForward",),
    "modules.norms": ("Norm",),
    "modules.stack": ("Stack",),
    "pretrained.load": ("load_pretrained",),
    "pretrained.save": ("save_pretrained",),
    "pretrained.tokenizer": ("load_tokenizer",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str):
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
