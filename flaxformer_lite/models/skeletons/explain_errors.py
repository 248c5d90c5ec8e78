"""Sentences for errors of models: what to write in place of calls that other libraries accept."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
from flax.errors import (
    ApplyScopeInvalidVariablesStructureError,
    ApplyScopeInvalidVariablesTypeError,
    ScopeCollectionNotFound,
    ScopeParamNotFoundError,
    ScopeParamShapeError,
)

from flaxformer_lite import hints
from flaxformer_lite.registry import did_you_mean

APPLY_ERRORS = (
    ApplyScopeInvalidVariablesStructureError,
    ApplyScopeInvalidVariablesTypeError,
    ScopeCollectionNotFound,
    ScopeParamNotFoundError,
    ScopeParamShapeError,
    TypeError,
)


def explain_attribute(kind: str, name: str) -> str:
    """Returns the sentence for an attribute that a model lacks outside of apply.

    Args:
      kind: the model's class.
      name: the attribute.
    """
    return hints.instead(kind, hints.MODEL, name) or (
        f"{kind} has no {name!r} outside of apply, as it holds no parameters; call"
        " model.apply({'params': params}, input_ids)."
    )


def explain_apply_error(
    model: nn.Module,
    error: Exception,
    variables: Mapping[str, Any],
    options: Mapping[str, Any],
) -> str:
    """Returns the sentence for an error of `apply`, one of APPLY_ERRORS; "" if there is none.

    Args:
      model: the model that was applied.
      error: what linen or Python raised.
      variables: the first argument of the call.
      options: the arguments by name of the call.
    """
    kind = type(model).__name__
    text = str(error).partition(" (https://")[0].rstrip(".")
    if isinstance(error, TypeError):
        return _explain_arguments(kind, model, text, options)
    if isinstance(error, ScopeParamNotFoundError | ScopeParamShapeError):
        return (
            f"apply of {kind}: params are not those of this model ({text}); pass the ones that"
            " init or load_pretrained made for it."
        )
    if isinstance(error, ApplyScopeInvalidVariablesStructureError):
        return (
            f"apply of {kind}: {{'params': {{'params': ...}}}} is one level too deep; pass the"
            " parameters themselves, variables['params']."
        )
    if variables.get("params") == {}:
        return (
            f"apply of {kind}: params are empty; pass the ones that init or load_pretrained made."
        )
    return explain_variables(kind)


def explain_variables(kind: str) -> str:
    """Returns the sentence for a first argument of `apply` that holds no parameters."""
    return (
        f"apply of {kind}: the first argument must be {{'params': params}}, with params as init or"
        " load_pretrained makes them, then the inputs."
    )


def _explain_arguments(kind: str, model: nn.Module, text: str, options: Mapping[str, Any]) -> str:
    """Returns the sentence for a call that Python refuses, as `text` says."""
    if re.search(r"__call__\(\) takes .* positional argument", text):
        parameters = list(inspect.signature(type(model).__call__).parameters.values())[1:]
        named = [x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD]
        return (
            f"apply of {kind}: takes {' and '.join(named)} by position; name all others, as in"
            " attention_mask=mask."
        )
    unknown = re.search(r"unexpected keyword argument '(\w+)'", text)
    if unknown is None or unknown[1] not in options:
        return ""
    sentence = hints.refused(f"apply of {kind}", hints.ARGUMENTS, [unknown[1]])
    known: set[str] = set()
    for method in ("__call__", "encode", "decode"):
        known |= inspect.signature(getattr(type(model), method, len)).parameters.keys()
    return sentence or f"apply of {kind}: {text}{did_you_mean(unknown[1], sorted(known)) or '.'}"
