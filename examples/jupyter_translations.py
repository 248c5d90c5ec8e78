"""Pairs of English and French lines of JupyterLab's menus and messages, for configs/translate.py.

pip download --no-deps jupyterlab-language-pack-fr-FR
python -m zipfile -e jupyterlab_language_pack_fr_fr-*.whl pack
python examples/jupyter_translations.py pack runs/menus.jsonl
flaxformer_lite train --config=translate --workdir=runs/menus --config.data.path=runs/menus.jsonl
"""

import json
import sys
from pathlib import Path


def pairs_of(catalogue):
    """Yields the source and target texts of a catalogue, without entries that are not
    translated."""
    for source, targets in json.loads(catalogue.read_text(encoding="utf-8")).items():
        text = source.rpartition("\x04")[2]  # a context may stand before it
        if isinstance(targets, list) and text and targets[0] and targets[0] != text:
            yield {"source": text, "target": targets[0]}


def main(folder, output):
    pairs = [pair for path in sorted(Path(folder).rglob("*.json")) for pair in pairs_of(path)]
    unique = {pair["source"]: pair for pair in pairs}.values()
    Path(output).write_text(
        "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in unique), encoding="utf-8"
    )
    print(f"{output}: {len(unique):,} pairs")


if __name__ == "__main__":
    main(*sys.argv[1:])
