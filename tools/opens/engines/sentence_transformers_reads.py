"""Reads folders with sentence-transformers."""

from pathlib import Path
from typing import Any

import numpy as np
from answers import SENTENCES, answer
from sentence_transformers import SentenceTransformer


def read(folder: Path, kind: str) -> dict[str, Any]:
    vectors = SentenceTransformer(str(folder), device="cpu").encode(list(SENTENCES))
    return {"vectors": np.asarray(vectors, np.float32)}


if __name__ == "__main__":
    answer("sentence-transformers", ("embedder",), read)
