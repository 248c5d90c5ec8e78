"""Built-in corpora: real text found on every machine where this library runs, so that no command
needs a download.

The text comes from the installed versions and so differs between machines, as do losses on it. Its
fingerprint is stored with every run.
"""

import ast
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flaxformer_lite.config import ConfigError

PACKAGES = ("numpy", "scipy", "jax", "flax", "optax")  # scipy and numpy come with jax
SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
SHORTEST_DOCSTRING = 80  # characters
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def stdlib_code() -> Iterator[dict[str, str]]:
    """Yields each module of the standard library, without its tests: about 11 MB of Python
    (PSF-2.0)."""
    for source in _sources(Path(sysconfig.get_paths()["stdlib"])):
        yield {"text": source}


def docstrings() -> Iterator[dict[str, str]]:
    """Yields docstrings of the required packages, and help() topics: about 10 MB of English (BSD,
    Apache-2.0, PSF)."""
    from pydoc_data import topics

    yield from ({"text": text} for text in topics.topics.values())
    yield from (
        {"text": text} for _, text, _ in _documented((ast.Module, ast.ClassDef, *FUNCTIONS))
    )


def code_docstrings() -> Iterator[dict[str, str]]:
    """Yields each documented function of the required packages as a pair: code without docstring,
    and docstring."""
    for node, text, lines in _documented(FUNCTIONS):
        if len(node.body) > 1:
            told = node.body[0]
            code = (
                lines[node.lineno - 1 : told.lineno - 1] + lines[told.end_lineno : node.end_lineno]
            )
            yield {"source": "".join(code), "target": text}


CORPORA = {"stdlib_code": stdlib_code, "docstrings": docstrings, "code_docstrings": code_docstrings}


def write(name: str, path: Path) -> None:
    """Extracts the corpus `name` into a jsonl file, each text once."""
    seen = set()
    with path.open("w", encoding="utf-8") as file:
        for record in CORPORA[name]():
            line = json.dumps(record)
            if line not in seen:
                seen.add(line)
                file.write(line + "\n")
    if not seen:
        raise ConfigError(
            f"data.corpus={name!r}: no sources are installed here; set data.path to your own text."
        )


def version(name: str) -> str:
    """Returns a string of everything that the text of the corpus `name` depends on."""
    packages = () if name == "stdlib_code" else PACKAGES
    return " ".join([sys.version, *(f"{p}={importlib.metadata.version(p)}" for p in packages)])


def _documented(kinds: Any) -> Iterator[tuple[Any, str, list[str]]]:
    """Yields definitions with a long docstring, the docstring, and the lines of the file."""
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None, "a requirement of this package"
        for source in _sources(Path(spec.origin).parent):
            with contextlib.suppress(SyntaxError, ValueError):
                lines = source.splitlines(keepends=True)
                for node in ast.walk(ast.parse(source)):
                    if (
                        isinstance(node, kinds)
                        and len(text := ast.get_docstring(node) or "") > SHORTEST_DOCSTRING
                    ):
                        yield node, text, lines


def _sources(root: Path) -> Iterator[str]:
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name not in SKIPPED)
        for name in sorted(names):
            if name.endswith(".py"):
                with contextlib.suppress(UnicodeDecodeError, OSError):
                    yield Path(folder, name).read_text("utf-8")
