"""Writes tests/pretrained/default_configs.json: the config.json of each class of transformers.

    PYTHONPATH=. PYTHON tools/default_configs.py

PYTHON is one that has transformers, as for known_fields.py. Fields that change no number are left
out, but for rates of dropout.
"""

import json
from pathlib import Path

from transformers import AutoConfig

from flaxformer_lite.pretrained.harmless_fields import HARMLESS
from tools.known_fields import DROPOUT, list_model_types

OUT = Path("tests/pretrained/default_configs.json")


def main() -> None:
    """Writes a line for each model_type."""
    lines = []
    for model_type in list_model_types():
        values = json.loads(AutoConfig.for_model(model_type).to_json_string(use_diff=False))
        kept = {}
        for name, value in sorted(values.items()):
            if name in DROPOUT or name not in HARMLESS:
                kept[name] = value
        lines.append(f"{json.dumps(model_type)}: {json.dumps(kept)}")
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
