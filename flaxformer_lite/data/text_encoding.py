"""Lines of text files: UTF-8, or UTF-16 if the file begins with its byte order mark.

Excel's "Unicode text" is such UTF-16.
"""

import codecs
import functools
import io
from collections.abc import Iterator

from flaxformer_lite.config import ConfigError
from flaxformer_lite.storage import compressed
from flaxformer_lite.storage.compressed import File

UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
USUAL = "cp1252"  # what Excel writes as "CSV" on most machines
LONGEST = 1 << 24  # characters of a line
AROUND = 20  # characters of a line that are shown on each side of what cannot be read


def is_utf16(path: File, where: str) -> bool:
    """Returns whether a file begins with the byte order mark of UTF-16."""
    with compressed.reading(path, where), compressed.unpacked(path, where) as stream:
        return stream.read(2) in UTF16


def lines(path: File, where: str, newline: str = "\n") -> Iterator[str]:
    """Yields the lines of a file, with their ends.

    Args:
      path: the file, which may be compressed.
      where: the field and value to name in errors.
      newline: as in `open`; "" keeps all kinds of line ends.

    Raises:
      ConfigError: a line is longer than LONGEST; or the file is neither UTF-8 nor marked as UTF-16,
        with the line and how to convert it.
    """
    with compressed.reading(path, where), compressed.unpacked(path, where) as stream:
        encoding = "utf-8-sig"
        if stream.peek(2)[:2] in UTF16:
            encoding = "utf-16"
        try:
            with io.TextIOWrapper(stream, encoding, newline=newline) as text:
                number = 0
                while line := text.readline(LONGEST + 1):
                    number += 1
                    if len(line) > LONGEST:
                        raise ConfigError(
                            f"{where}:{number}: a line of more than {LONGEST >> 20} Mi characters;"
                            " cut its text into several rows."
                        )
                    yield line
        except UnicodeDecodeError:
            raise undecodable(path, where, encoding) from None


def undecodable(path: File, where: str, encoding: str = "utf-8-sig") -> ConfigError:
    """Returns the error for a file that is not text; it names the first bad line."""
    if encoding == "utf-16":
        return ConfigError(f"{where}: begins like UTF-16, but is not; save it as UTF-8.")
    with compressed.unpacked(path, where) as stream:
        # A line of the most characters; a longer one before it would have been refused.
        read = functools.partial(stream.readline, 4 * LONGEST)
        for number, line in enumerate(iter(read, b""), start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return ConfigError(
                    f"{where}:{number}: not UTF-8 text (byte {line[error.start]:#04x}"
                    f"{_as_usual(line, error.start)}). In Excel, save it as 'CSV UTF-8'; or convert"
                    f" it: iconv -f {USUAL} -t utf-8 {path.name} > utf8-{path.name}"
                )
    return ConfigError(f"{where}: not UTF-8 text; save it as UTF-8.")


def _as_usual(line: bytes, at: int) -> str:
    """Returns the characters around a byte, decoded as USUAL, for the user to check."""
    try:
        text = line.decode(USUAL).strip()
    except UnicodeDecodeError:
        return ""
    near = text[max(0, at - AROUND) : at + AROUND]
    if not near.isprintable():
        return ""
    return f"; as {USUAL} it reads {near!r}"
