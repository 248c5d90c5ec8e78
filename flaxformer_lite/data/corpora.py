"""Built-in corpora: real text found wherever this library runs, so no command needs a download.

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
    """Yields the modules of the standard library: about 11 MB of Python (PSF-2.0).

    Tests are left out.
    """
    for source in _sources(Path(sysconfig.get_paths()["stdlib"])):
        yield {"text": source}


def docstrings() -> Iterator[dict[str, str]]:
    """Yields docstrings and help() topics: about 10 MB of English (BSD, Apache-2.0, PSF).

    The docstrings are the required packages'.
    """
    from pydoc_data import topics

    for text in topics.topics.values():
        yield {"text": text}
    for _, text, _ in _documented((ast.Module, ast.ClassDef, *FUNCTIONS)):
        yield {"text": text}


def code_docstrings() -> Iterator[dict[str, str]]:
    """Yields each documented function of the required packages as a pair of texts.

    The source is the code without its docstring, the target is the docstring.
    """
    for node, text, lines in _documented(FUNCTIONS):
        if len(node.body) > 1:
            docstring = node.body[0]
            above = lines[node.lineno - 1 : docstring.lineno - 1]
            below = lines[docstring.end_lineno : node.end_lineno]
            yield {"source": "".join(above + below), "target": text}


CORPORA = {"stdlib_code": stdlib_code, "docstrings": docstrings, "code_docstrings": code_docstrings}


def write(name: str, path: Path) -> None:
    """Extracts the corpus `name` into a jsonl file without duplicates."""
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
    versions = [sys.version]
    if name != "stdlib_code":
        for package in PACKAGES:
            versions.append(f"{package}={importlib.metadata.version(package)}")
    return " ".join(versions)


def _documented(kinds: Any) -> Iterator[tuple[Any, str, list[str]]]:
    """Yields definitions that have a long docstring, with that docstring and the file's lines."""
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None, "a requirement of this package"
        for source in _sources(Path(spec.origin).parent):
            with contextlib.suppress(SyntaxError, ValueError):
                lines = source.splitlines(keepends=True)
                for node in ast.walk(ast.parse(source)):
                    if not isinstance(node, kinds):
                        continue
                    text = ast.get_docstring(node) or ""
                    if len(text) > SHORTEST_DOCSTRING:
                        yield node, text, lines


def _sources(root: Path) -> Iterator[str]:
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name not in SKIPPED)
        for name in sorted(names):
            if name.endswith(".py"):
                with contextlib.suppress(UnicodeDecodeError, OSError):
                    yield Path(folder, name).read_text("utf-8")
