"""The tokenizer of a static embedding, whose texts have no special tokens around them."""

import json
from pathlib import Path

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json, read_bytes, read_object
from flaxformer_lite.text.saved_files import JSON, MAX_TOKENIZER_BYTES
from flaxformer_lite.text.special_tokens import Frame, Spans
from flaxformer_lite.text.tokenizer import HuggingFace

INSIDE = "0_StaticEmbedding"  # where sentence-transformers puts table and tokenizer
DEFAULT_LENGTH = 512  # tokens of a text where Model2Vec's config.json has no max_length


class StaticTokenizer(HuggingFace):
    """A tokenizer.json as sentence-transformers reads it or, if config.json is its, Model2Vec.

    Model2Vec leaves unknown tokens out, and cuts a text's characters before it tokenizes.
    """

    def __init__(self, definition: bytes, config: Json):
        super().__init__(definition)
        self.pad_id = max(self.pad_id, 0)  # where the vocabulary has neither padding nor end
        values = json.loads(definition)
        self.unknown: int | None = None
        self.characters: int | None = None
        self.most: int | None = (values.get("truncation") or {}).get("max_length")
        if config.get("model_type") != "model2vec":
            return
        self.unknown = values["model"].get("unk_id")  # of Unigram; others spell it
        if "unk_token" in values["model"]:
            self.unknown = self.library.token_to_id(values["model"]["unk_token"] or "")
        self.most = config.get("max_length", DEFAULT_LENGTH)
        if self.most is not None:
            lengths = [len(token) for token in self.library.get_vocab()]
            self.characters = self.most * int(np.median(lengths))

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [spans.ids.tolist() for spans in self.encode_spans(texts)]

    def encode_spans(self, texts: list[str]) -> list[Spans]:
        rows = []
        for spans in super().encode_spans([text[: self.characters] for text in texts]):
            cut = spans.cut(0, self.most)
            known_T = np.asarray([index != self.unknown for index in cut.ids], bool)
            rows.append(Spans(*(column[known_T] for column in cut)))
        return rows

    def template(self, texts: int) -> Frame:
        return Frame()


def read_tokenizer(folder: Path) -> StaticTokenizer:
    """Reads the tokenizer of a folder.

    Raises:
      ConfigError: it is missing or damaged.
    """
    path = folder / JSON
    if (folder / INSIDE).is_dir():
        path = folder / INSIDE / JSON
    config = {}
    if (folder / "config.json").is_file():
        config = read_object(folder / "config.json", {"max_length": int})
    try:
        return StaticTokenizer(read_bytes(path, limit=MAX_TOKENIZER_BYTES), config)
    except ConfigError as error:
        raise ConfigError(f"{path}: cannot be read as a tokenizer: {error}") from None
