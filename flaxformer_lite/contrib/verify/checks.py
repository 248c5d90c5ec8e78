"""Verifies a model: runs each check, and records what it has found."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import flax.linen as nn

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.verify import decoding, precision, training, visibility
from flaxformer_lite.contrib.verify.finding import EXACT_BOUND, Finding
from flaxformer_lite.contrib.verify.reference import check_reference
from flaxformer_lite.contrib.verify.subject import Subject, build_subject
from flaxformer_lite.models.skeletons.family_model import FamilyModel
from flaxformer_lite.registry import did_you_mean
from flaxformer_lite.types import Params

CHECKS: dict[str, Callable[[Subject], Iterator[Finding]]] = {
    "causal": visibility.check_causal,
    "window": visibility.check_windows,
    "padding": visibility.check_padding,
    "packing": visibility.check_packing,
    "cache": decoding.check_cache,
    "generate": decoding.check_generation,
    "accumulation": training.check_accumulation,
    "scan": training.check_scan,
    "saving": precision.check_saving,
    "quantized": precision.check_quantized,
    "bfloat16": precision.check_half,
}
ARGUMENTS = {"padding": "attention_mask", "packing": "segment_ids"}  # that a check passes
# that a model fails whose tokens read others by their columns, or share their experts
OF_PUBLISHED = ("padding", "packing", "cache", "generate", "accumulation")
OF_FAMILIES = ("window", "cache", "scan", "saving", "quantized", "bfloat16")


def verify(
    model: nn.Module,
    params: Params,
    *,
    checks: Sequence[str] = (),
    seed: int = 0,
    causal: bool | None = None,
    reference: str | Path | None = None,
) -> list[Finding]:
    """Verifies that a model has the properties that a model should have.

        >>> findings = verify(model, params)  # doctest: +SKIP
        >>> assert not [one for one in findings if one.verdict == "FAULT"]  # doctest: +SKIP

    The texts are random ids; sliding windows are shortened, so that a text is longer. All is
    computed in float32, but where a property is about other numbers.

    Args:
      model: a model of this package, or a linen module of one's own that maps ids [B, T] to logits
        [B, T, V], returned as an array or as the field `logits`. What a module has no argument for
        (`attention_mask`, `segment_ids`) is not checked.
      params: its parameters.
      checks: names of CHECKS; () for all.
      seed: the seed of all texts.
      causal: of a module of one's own, whether no token may see later ones; None finds out.
      reference: a folder with inputs.npz and outputs.npz of another program, as
        tools/reference_outputs.py writes them.

    Returns:
      A `Finding` for each property, with its `verdict`: `holds`, `FAULT`, `as published` or
      `not checked`.

    Raises:
      ConfigError: the model has nothing to check, a name of `checks` is unknown, or the folder of
        the reference cannot be used.
    """
    for name in checks:
        if name not in CHECKS:
            raise ConfigError(
                f"checks: {name!r}: no such check{did_you_mean(name, list(CHECKS))}; there are"
                f" {', '.join(CHECKS)}."
            )
    subject = build_subject(model, params, seed, causal)
    findings: list[Finding] = []
    if reference is not None:
        findings += check_reference(subject, reference)
    for name in checks or CHECKS:
        try:
            _check_applies(model, name)
            for finding in CHECKS[name](subject):
                if name in OF_PUBLISHED and subject.known_reason:
                    finding = finding._replace(why=subject.known_reason, published=True)
                findings.append(finding)
        except ConfigError as error:
            findings.append(Finding(name, None, EXACT_BOUND, str(error)))
    return findings


def _check_applies(model: nn.Module, check: str) -> None:
    """Raises a ConfigError if a module of one's own lacks what a check needs."""
    kind = type(model)
    if isinstance(model, FamilyModel):
        return
    if check in OF_FAMILIES:
        raise ConfigError(f"{kind.__name__} is not a model of a family.")
    argument = ARGUMENTS.get(check)
    if argument and argument not in inspect.signature(kind.__call__).parameters:
        raise ConfigError(f"{kind.__name__} takes no {argument}.")
