"""Folders that are made once, by content: complete or absent, whoever is killed and whoever else is making the same."""

import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from flaxformer_lite.config import ConfigError

MANIFEST = "complete.json"


def folder(root: str | Path, name: str, write: Callable[[Path], None]) -> Path:
    """The folder `root/name`, made by `write` if it is not there or not whole.

    It is written under another name and renamed when complete, so that a killed process leaves nothing half-made and
    two processes at once do no harm: the first to finish wins. Each file's size is checked on every later use.

    Args:
      root: data.cache; `~` is the home folder.
      name: carries the hash of everything the content depends on.
      write: fills the empty folder it is given; whatever else it raises than OSError passes through.

    Raises:
      ConfigError: `root` cannot be written.
    """
    root = Path(root).expanduser()
    final = root / name
    if _whole(final):
        return final
    temporary = root / f"{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        temporary.mkdir(parents=True)
        write(temporary)
        sizes = {str(p.relative_to(temporary)): p.stat().st_size for p in temporary.rglob("*") if p.is_file()}
        (temporary / MANIFEST).write_text(json.dumps(sizes))
        _publish(temporary, final)
    except OSError as error:
        raise ConfigError(f"data.cache={str(root)!r}: cannot write there ({error.strerror or error}); free some space"
                          f" or name another folder, --config.data.cache=FOLDER.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def _publish(temporary: Path, final: Path) -> None:
    """Renames into place; where another process was faster, its folder stays."""
    if final.exists() and not _whole(final):
        print(f"{final}: incomplete or damaged, made again.", file=sys.stderr)
        damaged = temporary.with_name(temporary.name + ".damaged")
        final.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        temporary.rename(final)
    except OSError:
        if not _whole(final):
            raise


def _whole(path: Path) -> bool:
    try:
        sizes = json.loads((path / MANIFEST).read_text())
        return all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False
