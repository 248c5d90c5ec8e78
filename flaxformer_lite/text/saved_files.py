"""The files that a tokenizer is saved as, for those who hash or copy them without reading one."""

MAX_TOKENIZER_BYTES = (
    1 << 28
)  # bytes of a tokenizer's file; the largest published ones have a seventh
BYTES = "tokenizer.bytes"
JSON = "tokenizer.json"
SENTENCEPIECE = "tokenizer.model"
CONFIG = "tokenizer_config.json"  # roles of special tokens, which a tokenizer.json lacks
ALL = (JSON, SENTENCEPIECE, BYTES, CONFIG)
