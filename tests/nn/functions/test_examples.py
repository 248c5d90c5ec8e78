"""The examples in the docstrings of the pure layer, run as they stand."""

import doctest
import importlib

import pytest

MODULES = (
    "functions.kernels",
    "functions.losses",
    "functions.masks",
    "functions.nearest",
    "functions.embedding",
    "attentions.dense",
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(f"flaxformer_lite.nn.{name}"))
    assert result.attempted > 0 and result.failed == 0
