"""Parquet and arrow files, read in batches by pyarrow."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json
from flaxformer_lite.storage.compressed import INSTALL, Stream

if TYPE_CHECKING:
    import pyarrow.parquet

KINDS = (".parquet", ".arrow")
BATCH_ROWS = 1024
MAX_VALUE_BYTES = 1 << 24  # most bytes of a text and values of a list, the limit of a line of jsonl
MAX_HELD_BYTES = 1 << 26  # bytes of texts converted to Python objects at a time
MAX_UNPACKED_BYTES = 1 << 28  # bytes to which a row group or batch may be unpacked
Content = Path | Stream | bytes
# And how much longer than its part of the file; texts compress to a third or a tenth.
MAX_UNPACKED_RATIO = 16
# encodings that pyarrow does not read as a dictionary
DIFFERENCES = {"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"}


def rows(content: Content, where: str, kind: str, columns: Sequence[str] = ()) -> Iterator[Json]:
    """Yields the rows of a file, holding one batch of bounded size in memory.

    The size is bounded because a few bytes of parquet can declare a long text for every row.

    Args:
      content: a path, which is mapped into memory, a stream, or the bytes.
      where: the field and value to name in errors.
      kind: one of KINDS.
      columns: those to read; all by default, and where one of them is missing.

    Raises:
      ConfigError: pyarrow is not installed, the file is damaged, or a text is longer than
        MAX_VALUE_BYTES.
    """
    with _arrow(where) as arrow:
        source = _source(arrow, content)
        read = _parquet_batches if kind == ".parquet" else _arrow_batches
        for batch in read(arrow, source, columns, where):
            batch.validate(full=True)  # before Python follows the offsets of a damaged file
            widest = sum(_widest(arrow, column, where) for column in batch.columns)
            step = max(1, min(BATCH_ROWS, MAX_HELD_BYTES // max(1, widest)))
            for at in range(0, batch.num_rows, step):
                for row in _plain(arrow, batch.slice(at, step)).to_pylist():
                    yield {name: _own_keys(value) for name, value in row.items()}


def _own_keys(value: object, *, is_inner: bool = False) -> object:
    """Leaves out what structs within structs have for other rows alone, and is null.

    A column has one type, so a tool call in it has the arguments of all tools, and a part of a
    message an image beside its text.
    """
    if isinstance(value, list):
        return [_own_keys(item, is_inner=is_inner) for item in value]
    if not isinstance(value, dict):
        return value
    own = {}
    for key, item in value.items():
        if item is not None or not is_inner:
            own[key] = _own_keys(item, is_inner=True)
    return own


def _parquet_batches(
    arrow: ModuleType, source: "pyarrow.NativeFile", columns: Sequence[str], where: str
) -> "Iterator[pyarrow.RecordBatch]":
    """Yields batches in which each distinct text of a parquet dictionary is held once."""
    metadata = arrow.parquet.read_metadata(source)
    wanted = _present(columns, metadata.schema.to_arrow_schema())
    way_out = "in smaller groups, as by pyarrow.parquet.write_table(..., row_group_size=1000)"
    texts = set()
    by_differences = set()
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        packed = 0
        unpacked = 0
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.path_in_schema.split(".")[0] not in wanted:
                continue
            packed += chunk.total_compressed_size
            unpacked += chunk.total_uncompressed_size
            if chunk.physical_type == "BYTE_ARRAY":
                texts.add(chunk.path_in_schema)
            if not DIFFERENCES.isdisjoint(chunk.encodings):
                by_differences.add(chunk.path_in_schema)
        _check_growth(packed, unpacked, where, way_out)
    file = arrow.parquet.ParquetFile(
        source, metadata=metadata, read_dictionary=list(texts - by_differences)
    )
    yield from file.iter_batches(BATCH_ROWS, columns=wanted)


def _check_growth(packed: int, unpacked: int, where: str, way_out: str) -> None:
    if unpacked > max(MAX_UNPACKED_BYTES, MAX_UNPACKED_RATIO * packed):
        raise ConfigError(
            f"{where}: {packed:,} bytes that are unpacked to {unpacked:,} at a time, where"
            f" {MAX_UNPACKED_BYTES >> 20} MiB are the most; write it anew {way_out}."
        )


def _arrow_batches(
    arrow: ModuleType, source: "pyarrow.NativeFile", columns: Sequence[str], where: str
) -> "Iterator[pyarrow.RecordBatch]":
    size = source.size()
    reader = _opened(arrow, source)
    batches = reader
    if hasattr(reader, "num_record_batches"):  # a file, where a stream is iterated over
        batches = map(reader.get_batch, range(reader.num_record_batches))
    wanted = _present(columns, reader.schema)
    for batch in batches:
        # Nothing in the file tells the size of a batch before it is unpacked.
        _check_growth(size, batch.get_total_buffer_size(), where, "as datasets writes it")
        yield batch.select(wanted)


def _widest(arrow: ModuleType, values: "pyarrow.Array", where: str) -> int:
    """Returns a bound on the bytes of one row of an array.

    Raises:
      ConfigError: a text or a list is longer than MAX_VALUE_BYTES.
    """
    kind = values.type
    types = arrow.types
    if types.is_dictionary(kind):
        return _widest(arrow, values.dictionary, where)
    if types.is_struct(kind):
        return sum(_widest(arrow, values.field(i), where) for i in range(kind.num_fields))
    if any(is_text(kind) for is_text in _texts(types)):
        return _longest(arrow, arrow.compute.binary_length(values), where)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        count = _longest(arrow, arrow.compute.list_value_length(values), where)
        return count * _widest(arrow, values.flatten(), where)
    if types.is_nested(kind):
        return values.nbytes
    return 16


def _longest(arrow: ModuleType, lengths: "pyarrow.Array", where: str) -> int:
    longest = arrow.compute.max(lengths).as_py() or 0
    if longest > MAX_VALUE_BYTES:
        raise ConfigError(
            f"{where}: a value of more than {MAX_VALUE_BYTES >> 20} MiB; cut its text into several"
            " rows."
        )
    return longest


def _texts(types: ModuleType) -> tuple[Callable[..., bool], ...]:
    return types.is_string, types.is_large_string, types.is_binary, types.is_large_binary


def _plain(arrow: ModuleType, batch: "pyarrow.RecordBatch") -> "pyarrow.RecordBatch":
    """Decodes the dictionary columns of a batch; `to_pylist` is faster on the result."""
    columns = []
    for column in batch.columns:
        if arrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        columns.append(column)
    return arrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _source(arrow: ModuleType, content: Content) -> "pyarrow.NativeFile":
    if isinstance(content, bytes):
        return arrow.BufferReader(content)
    if isinstance(content, Path):
        return arrow.memory_map(str(content))
    return arrow.PythonFile(content, "r")


def _present(columns: Sequence[str], schema: "pyarrow.Schema") -> list[str]:
    if columns and set(columns) <= set(schema.names):
        return list(columns)
    return schema.names


def class_names(content: Content, where: str) -> dict[str, tuple[str, ...]]:
    """Reads the names of classes that `datasets` keeps in the schema of parquet and arrow files."""
    with _arrow(where) as arrow:
        source = _source(arrow, content)
        is_parquet = source.read(4) == b"PAR1"
        source.seek(0)
        if is_parquet:
            schema = arrow.parquet.read_schema(source)
        else:
            schema = _opened(arrow, source).schema
    kept = (schema.metadata or {}).get(b"huggingface")
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return named(json.loads(kept)["info"]["features"]) if kept else {}
    return {}


def named(features: object) -> dict[str, tuple[str, ...]]:
    """Returns the names of the classes of each column, from the features of `datasets`.

    Those of a key of a column's objects stand under `column.key`.
    """
    names: dict[str, tuple[str, ...]] = {}
    if not isinstance(features, dict):
        return names
    for column, feature in features.items():
        feature = _of_items(feature)
        if not isinstance(feature, dict):
            continue
        if feature.get("_type") == "ClassLabel":
            names[column] = tuple(map(str, feature.get("names") or ()))
            continue
        for key, inner in named(feature).items():
            names[f"{column}.{key}"] = inner
    return names


def _of_items(feature: object) -> object:
    """Returns the feature of a list's items, which older versions of `datasets` put in a list."""
    while True:
        if isinstance(feature, list) and len(feature) == 1:
            feature = feature[0]
        elif isinstance(feature, dict) and {"_type", "feature"} <= feature.keys():
            feature = feature["feature"]
        else:
            return feature


@contextlib.contextmanager
def _arrow(where: str) -> Iterator[ModuleType]:
    try:
        import pyarrow.compute
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(f"{where}: {INSTALL}.") from None
    try:
        yield pyarrow
    except ConfigError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"{where}: cannot be read ({str(error).splitlines()[0]}).") from None


def _opened(
    pyarrow: ModuleType, source: "pyarrow.NativeFile"
) -> "pyarrow.ipc.RecordBatchFileReader | pyarrow.ipc.RecordBatchStreamReader":
    """Opens either of Arrow's file formats; `datasets` writes the streaming one."""
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    return pyarrow.ipc.open_file(source) if is_file else pyarrow.ipc.open_stream(source)
