"""Which cases of a test are for every change, and which for the nightly run."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def daily(cases: Iterable[Any], chosen: Collection[Any]) -> list[Any]:
    """Marks the cases as nightly that are not chosen; a tuple is the arguments of one case."""
    marked = []
    for case in cases:
        arguments = case if isinstance(case, tuple) else (case,)
        is_daily = case in chosen
        marked.append(case if is_daily else pytest.param(*arguments, marks=pytest.mark.nightly))
    return marked
