"""Checks, in every test, that a letter in the names of a call's arrays is one size (axes.py).

`q_BTNH` has four axes, and the B and T of a call are those of `mask_BTS` beside it. Functions of
the folders below are wrapped when they are imported; nothing is checked outside of tests.
"""

import functools
import importlib.abc
import importlib.machinery
import inspect
import re
import sys
import types

FOLDERS = tuple(f"flaxformer_lite.nn.{name}." for name in ("functions", "attentions", "positions"))
LETTERS = re.compile(r"_([A-Z0-9][A-Za-z0-9]*)$")
# Values may have a width of their own, for which there is no letter left.
WIDTH_OF_VALUES = ("v_BSKH", "H")


def letters_of(name):
    """Returns the letters that end the name of an array, such as BTNH; "" if it has none."""
    found = LETTERS.search(name)
    if found is None or not re.search("[A-Z]", found[1]):
        return ""
    return found[1]


def check_arguments(where, arguments):
    """Raises AssertionError if a letter has two sizes, or an array another number of axes."""
    sizes = {}
    for name, value in arguments.items():
        letters = letters_of(name)
        shape = getattr(value, "shape", None)
        if not letters or not isinstance(shape, tuple):
            continue
        assert len(letters) == len(shape), f"{where}: {name} has the shape {shape}"
        for letter, size in zip(letters, shape, strict=True):
            if letter.isdigit():
                assert size == int(letter), f"{where}: {name} has the shape {shape}"
            elif size != 1 and (name, letter) != WIDTH_OF_VALUES:  # 1 broadcasts
                known = sizes.setdefault(letter, (size, name))
                assert known[0] == size, (
                    f"{where}: {letter} is {size} in {name}, and {known[0]} in {known[1]}"
                )


def checked(function):
    """Wraps a function whose arguments have letters; returns others as they are."""
    signature = inspect.signature(function)
    if not any(map(letters_of, signature.parameters)):
        return function
    where = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def call(*arguments, **named):
        returned = function(*arguments, **named)
        # Afterwards, as what the function refuses is its own affair.
        check_arguments(where, signature.bind(*arguments, **named).arguments)
        return returned

    return call


class CheckingLoader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        for name, value in list(vars(module).items()):
            is_own = isinstance(value, types.FunctionType) and value.__module__ == module.__name__
            if is_own:
                setattr(module, name, checked(value))


class CheckingFinder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if not name.startswith(FOLDERS):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        spec.loader = CheckingLoader(spec.loader.name, spec.loader.path)
        return spec


def install():
    """Checks the modules that are imported from now on."""
    sys.meta_path.insert(0, CheckingFinder())
