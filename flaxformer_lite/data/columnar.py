"""Parquet and arrow files, read in batches by pyarrow."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data.compressed import INSTALL

KINDS = (".parquet", ".arrow")
BATCH = 1024  # rows
Row = dict[str, Any]


def rows(content: Any, where: str, kind: str, columns: Sequence[str] = ()) -> Iterator[Row]:
    """Yields the rows of a file, and holds one batch of them.

    Args:
      content: a path, which is mapped into memory, a stream, or the bytes.
      where: the field and value that errors name.
      kind: one of KINDS.
      columns: those to read; all by default, and where one of them is missing.

    Raises:
      ConfigError: pyarrow is not installed, or the file is damaged.
    """
    with _arrow(where) as arrow:
        source = _source(arrow, content)
        if kind == ".parquet":
            file = arrow.parquet.ParquetFile(source)
            batches = file.iter_batches(BATCH, columns=_present(columns, file.schema_arrow))
        else:
            opened = _opened(arrow, source)
            stored = (
                map(opened.get_batch, range(opened.num_record_batches))
                if hasattr(opened, "get_batch")
                else opened
            )
            wanted = _present(columns, opened.schema)
            chosen = (batch.select(wanted) for batch in stored)
            batches = (
                batch.slice(at, BATCH) for batch in chosen for at in range(0, batch.num_rows, BATCH)
            )
        for batch in batches:
            yield from batch.to_pylist()


def _source(arrow: Any, content: Any) -> Any:
    if isinstance(content, bytes):
        return arrow.BufferReader(content)
    return (
        arrow.memory_map(str(content))
        if isinstance(content, Path)
        else arrow.PythonFile(content, "r")
    )


def _present(columns: Sequence[str], schema: Any) -> list[str]:
    return list(columns) if columns and set(columns) <= set(schema.names) else schema.names


def class_names(content: bytes) -> dict[str, tuple[str, ...]]:
    """Reads the names of classes that `datasets` keeps in the schema of parquet and arrow files."""
    import pyarrow.parquet

    source = pyarrow.BufferReader(content)
    schema = (
        pyarrow.parquet.read_schema(source)
        if content[:4] == b"PAR1"
        else _opened(pyarrow, source).schema
    )
    kept = (schema.metadata or {}).get(b"huggingface")
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        return named(json.loads(kept)["info"]["features"]) if kept else {}
    return {}


def named(features: Any) -> dict[str, tuple[str, ...]]:
    """Returns the names of the classes of each column, from the features of `datasets`."""
    names = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else {}  # of a list
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel":
            names[column] = tuple(map(str, inner.get("names") or ()))
    return names


@contextlib.contextmanager
def _arrow(where: str) -> Iterator[Any]:
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(f"{where}: {INSTALL}.") from None
    try:
        yield pyarrow
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: cannot be read ({str(error).splitlines()[0]}).") from None


def _opened(pyarrow: Any, source: Any) -> Any:
    """Opens either form of arrow's files; `datasets` writes streams."""
    whole = source.read(6) == b"ARROW1"
    source.seek(0)
    return pyarrow.ipc.open_file(source) if whole else pyarrow.ipc.open_stream(source)
