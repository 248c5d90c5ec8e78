"""Config files: broken sources, wrong results of get_config, and pages with nodes and fields of
other types."""

import functools
import random
from pathlib import Path

from tools.opponent import settings
from tools.opponent.case import Case

SOURCES = (
    "",
    "get_config = 3",
    "get_config = None",
    "def get_config(",
    "def get_config(a, b): pass",
    "\x00",
    "import no_such_module",
    "def get_config(): return None",
    "def get_config(): return 3",
    "def get_config(): return 'gpt2_tiny'",
    "def get_config(): return []",
    "def get_config(): return {}",
    "def get_config(): return {'model': {}}",
    "def get_config(): raise RuntimeError('x' * 10**5)",
    "def get_config(): 1/0",
    "def get_config(): raise MemoryError",
    "def get_config(): raise StopIteration",
    "def get_config(): return get_config()",
    "def get_config(): assert False",
    "def get_config(): return lambda: 3",
    "def get_config(): return open('/no/such/file')",
    "x = " + "(" * 1000,
    "x = 1 +" * 9000,
    "from ml_collections import ConfigDict\ndef get_config(): return ConfigDict()",
    "from ml_collections import ConfigDict\ndef get_config(): return ConfigDict({'model': 3})",
    "from ml_collections import ConfigDict\ndef get_config(): c = ConfigDict(); c.c = c; return c",
    (
        "from ml_collections import FrozenConfigDict\ndef get_config(): return"
        " FrozenConfigDict({'model': {'a': 1}})"
    ),
    "raise Exception('\\x1b[31m')",
    "raise Exception('\\ud800')",
    "# \\xff",
)
PAGE = """from flaxformer_lite import pages
import numpy as np

def get_config():
    c = pages.get_config({page!r})
    with c.unlocked():
        c{field} = {value}
    return c
"""
VALUES = (
    "None",
    "3",
    "-1",
    "'rope'",
    "''",
    "[]",
    "{}",
    "()",
    "object()",
    "float('nan')",
    "float('inf')",
    "b'x'",
    "10**30",
    "10**5000",
    "True",
    "'\\ud800'",
    "'\\x1b[31m'",
    "'\\x00'",
    "np.float32(1)",
    "np.int64(3)",
    "np.zeros(3)",
    "np.nan",
    "...",
    "{1, 2}",
    "lambda: 3",
    "int",
    "1j",
    "range(3)",
    "[[1], 'x', None]",
    "{'name': 3}",
    "{'name': None}",
    "{3: 4}",
    "c",
    "{'name': ['rope']}",
    "__import__('datetime').datetime.now()",
    "__import__('pathlib').Path('x')",
)
NODES = (
    "",
    ".model",
    ".model.position",
    ".model.mixer",
    ".objective",
    ".data",
    ".data.tokenizer",
    ".optimizer",
    ".train",
    ".mesh",
)


def cases(kind: str, folder: Path, rng: random.Random, count: int) -> list[Case]:
    """Returns the broken sources, each node with each value, and as many fields with one value
    each."""
    sources = [(source[:80], source) for source in SOURCES]
    nodes = [
        (f"c{field} = {value}", PAGE.format(page=page, field=field, value=value))
        for page in settings.PAGES[:3]
        for field in NODES[1:]
        for value in VALUES
    ]
    found = [*sources, *nodes, *_leaves(rng, count)]
    return [Case(kind, label, functools.partial(_run, folder, source)) for label, source in found]


def _leaves(rng: random.Random, count: int) -> list[tuple[str, str]]:
    from tools.opponent.config_values import _fields

    fields = [(page, field) for page, chosen, field in _fields() if not chosen]
    drawn = [(*rng.choice(fields), rng.choice(VALUES)) for _ in range(2 * count)]
    return [
        (f"c.{field} = {value}", PAGE.format(page=page, field=f".{field}", value=value))
        for page, field, value in drawn
    ]


def _run(folder: Path, source: str) -> None:
    path = folder / "page.py"
    path = path.with_name(f"page{hash(source) & 0xFFFFFFFF}.py")
    path.write_bytes(source.encode("utf-8", "surrogateescape").replace(b"\\xff", b"\xff"))
    settings.check(
        [
            f"--config={path}",
            f"--config.data.path={settings.text(folder)}",
            f"--config.data.cache={folder}/cache",
            "--config.data.tokenizer.name=bytes",
        ]
    )
