"""Parquet and arrow files, read in batches by pyarrow."""

import contextlib
import json
import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import stored
from flaxformer_lite.storage.compressed import INSTALL, Stream

if TYPE_CHECKING:
    import pyarrow.parquet

KINDS = (".parquet", ".arrow")
BATCH = 1024  # rows
LONGEST = 1 << 24  # most bytes of a text and values of a list, the limit of a line of jsonl
HELD = 1 << 26  # bytes of texts converted to Python objects at a time
UNPACKED = 1 << 28  # bytes to which a row group or batch may be unpacked
Content = Path | Stream | bytes
RATIO = 16  # and how much longer than its part of the file; texts compress to a third or a tenth
# Encodings that pyarrow does not read as a dictionary. With the first, which stores a text as its
# difference to the one before, a text may be as long as a page and take a few bytes of it.
DIFFERENCES = ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")


def rows(
    content: Content, where: str, kind: str, columns: Sequence[str] = ()
) -> Iterator[stored.TableRow]:
    """Yields the rows of a file, holding one batch of bounded size in memory.

    The size is bounded because a few bytes of parquet can declare a long text for every row.

    Args:
      content: a path, which is mapped into memory, a stream, or the bytes.
      where: the field and value to name in errors.
      kind: one of KINDS.
      columns: those to read; all by default, and where one of them is missing.

    Raises:
      ConfigError: pyarrow is not installed, the file is damaged, or a text is longer than LONGEST.
    """
    with _arrow(where) as arrow:
        source = _source(arrow, content)
        read = _parquet_batches if kind == ".parquet" else _arrow_batches
        for batch in read(arrow, source, columns, where):
            batch.validate(full=True)  # before Python follows the offsets of a damaged file
            widest = sum(_widest(arrow, column, where) for column in batch.columns)
            step = max(1, min(BATCH, HELD // max(1, widest)))
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
    encoded = _by_differences(metadata)
    leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    dictionaries = [path for path in texts if path not in encoded]
    file = arrow.parquet.ParquetFile(source, metadata=metadata, read_dictionary=dictionaries)
    wanted = _present(columns, file.schema_arrow)
    widest = 1  # values of a row in a list, on average, or bytes of a text by its prefix
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        packed = 0
        unpacked = 0
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.path_in_schema.split(".")[0] not in wanted:
                continue
            if chunk.total_uncompressed_size > LONGEST * max(1, chunk.num_values):
                raise _too_long(where)
            packed += chunk.total_compressed_size
            unpacked += chunk.total_uncompressed_size
            widest = max(widest, chunk.num_values // max(1, group.num_rows))
            if chunk.path_in_schema in encoded:
                widest = max(widest, chunk.total_uncompressed_size)
        way_out = "in smaller groups, as by pyarrow.parquet.write_table(..., row_group_size=1000)"
        _check_growth(packed, unpacked, where, way_out)
    size = max(1, min(BATCH, HELD // widest))
    yield from file.iter_batches(size, columns=wanted)


def _check_growth(packed: int, unpacked: int, where: str, way_out: str) -> None:
    if unpacked > max(UNPACKED, RATIO * packed):
        raise ConfigError(
            f"{where}: {packed:,} bytes that are unpacked to {unpacked:,} at a time, where"
            f" {UNPACKED >> 20} MiB are the most; write it anew {way_out}."
        )


def _by_differences(metadata: "pyarrow.parquet.FileMetaData") -> set[str]:
    """Returns the paths of the columns with an encoding of DIFFERENCES."""
    paths = set()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for chunk in map(group.column, range(group.num_columns)):
            if not set(DIFFERENCES).isdisjoint(chunk.encodings):
                paths.add(chunk.path_in_schema)
    return paths


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
      ConfigError: a text or a list is longer than LONGEST.
    """
    kind = values.type
    types = arrow.types
    if types.is_dictionary(kind):
        return _widest(arrow, values.dictionary, where)
    if any(is_text(kind) for is_text in _texts(types)):
        longest = arrow.compute.max(arrow.compute.binary_length(values)).as_py() or 0
        if longest > LONGEST:
            raise _too_long(where)
        return longest
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        count = arrow.compute.max(arrow.compute.list_value_length(values)).as_py() or 0
        if count > LONGEST:
            raise _too_long(where)
        return count * _widest(arrow, values.flatten(), where)
    if types.is_struct(kind):
        return sum(_widest(arrow, values.field(i), where) for i in range(kind.num_fields))
    if types.is_nested(kind):
        return values.nbytes
    return 16


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


def _too_long(where: str) -> ConfigError:
    return ConfigError(
        f"{where}: a value of more than {LONGEST >> 20} MiB; cut its text into several rows."
    )


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


def class_names(content: bytes | mmap.mmap) -> dict[str, tuple[str, ...]]:
    """Reads the names of classes that `datasets` keeps in the schema of parquet and arrow files."""
    import pyarrow.parquet

    source = pyarrow.BufferReader(content)
    if content[:4] == b"PAR1":
        schema = pyarrow.parquet.read_schema(source)
    else:
        schema = _opened(pyarrow, source).schema
    kept = (schema.metadata or {}).get(b"huggingface")
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        return named(json.loads(kept)["info"]["features"]) if kept else {}
    return {}


def named(features: object) -> dict[str, tuple[str, ...]]:
    """Returns the names of the classes of each column, from the features of `datasets`."""
    names: dict[str, tuple[str, ...]] = {}
    if not isinstance(features, dict):
        return names
    for column, feature in features.items():
        if isinstance(feature, dict):
            feature = feature.get("feature", feature)  # of the items, if it is a list
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            names[column] = tuple(map(str, feature.get("names") or ()))
    return names


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
