"""What each engine's program has in common: what it is asked, and how it answers.

These programs run where the engine is installed, without this package. `python ENGINE.py FOLDERS`
reads the folders that it knows and writes what it found into FOLDERS/answers/ENGINE; with `theirs`
as the third argument it reads what transformers wrote instead of what we did.
"""

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[3]))

from tools.opens.asked import ASKED, CHAT, NEW_TOKENS, SENTENCES, TAGGED, TEXTS

__all__ = ["ASKED", "CHAT", "NEW_TOKENS", "SENTENCES", "TAGGED", "TEXTS", "Unknown", "answer"]


class Unknown(Exception):
    """The engine does not know the family."""


def answer(
    engine: str, kinds: tuple[str, ...], read: Callable[[Path, str], dict[str, Any]]
) -> None:
    """Asks `read` of each folder, and keeps its arrays and its other answers.

    Args:
      engine: its name.
      kinds: "causal", "seq2seq", "encoder": the folders that it may know.
      read: returns ids, logits/0 ..., greedy, stops, chat, as far as the engine has them. Raises
        `Unknown` if the engine lacks the family.
    """
    root = Path(sys.argv[1])
    only = sys.argv[2].split(",") if len(sys.argv) > 2 and sys.argv[2] else []
    written_by = sys.argv[3] if len(sys.argv) > 3 else "ours"
    for kind in kinds:
        for folder in sorted((root / written_by / kind).glob("[!.]*/")):
            if only and folder.name not in only:
                continue
            try:
                found = read(folder, kind)
            except Unknown as error:
                found = {"unknown": str(error)}
            except (Exception, SystemExit) as error:
                traceback.print_exc()
                lines = f"{type(error).__name__}: {error}".strip().splitlines()
                found = {"failed": lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"}
            arrays = {name: x for name, x in found.items() if isinstance(x, np.ndarray)}
            said = {name: x for name, x in found.items() if name not in arrays}
            to = root / "answers" / written_by / engine / f"{kind}.{folder.name}"
            to.parent.mkdir(parents=True, exist_ok=True)
            Path(f"{to}.json").write_text(json.dumps(said))
            np.savez(f"{to}.npz", **arrays)
            print(
                f"{engine} {folder.name}: {said.get('failed', said.get('unknown', 'read'))}",
                flush=True,
            )
