"""BERT, GPT and T5 in JAX/Flax: pure functions, thin linen modules, one command to train.

Everything users import by name is listed in __init__.pyi; a name's module is loaded when the name
is first asked for, so that importing one function does not pay for a trainer.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.4.0.dev0"  # of wheels, too: CONTRIBUTING.md

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULE_OF = {}
for _node in _STUB.body:
    if isinstance(_node, ast.ImportFrom):
        _MODULE_OF |= dict.fromkeys((_name.name for _name in _node.names), _node.module)
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        near = ""
        hints = importlib.import_module(f"{__name__}.hints")
        sentence = hints.instead(__name__, hints.PACKAGE, name)
        if name[:1].isupper():  # not a submodule, for which Python asks here first
            registry = importlib.import_module(f"{__name__}.registry")
            near = registry.did_you_mean(name, __all__)
            families = registry.available("models")
            sentence = sentence or hints.instead_of_class(__name__, name, families)
        if sentence:
            raise ImportError(sentence)  # `from ... import` hides the text of another error
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{near}")
    return getattr(importlib.import_module(str(_MODULE_OF[name])), name)


def __dir__() -> list[str]:
    return __all__
