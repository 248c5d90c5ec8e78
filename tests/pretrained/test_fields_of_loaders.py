"""Fields of config.json that other loaders have no default for, though transformers does."""

import json

import pytest

from flaxformer_lite.__main__ import main
from flaxformer_lite.pretrained.hf_config import write_config
from flaxformer_lite.registry import resolve
from tests.cli import models
from tests.models.tiny import small

WRITTEN = {
    "gpt2": {"n_ctx": 40},  # llama.cpp, mlx-lm
    "bert": {"position_embedding_type": "absolute"},  # CTranslate2
    "mbart": {"normalize_before": True, "normalize_embedding": True},  # CTranslate2
    "llama": {"rope_scaling": None},  # mlx-lm: EXAONE 4, GLM 4.5
}


@pytest.mark.parametrize("family", WRITTEN)
def test_fields_that_loaders_read_are_written_where_they_say_a_default(family):
    cfg = small(family, max_length=40)
    written = write_config(resolve("models", family), cfg)
    assert WRITTEN[family].items() <= written.items()


@pytest.mark.parametrize(
    ("family", "size", "expected"),
    [("gemma3_text", "1b", 6), ("cohere2", "r7b", 4), ("exaone4", "32b", "LLLG")],
)
def test_the_period_of_the_full_layers_is_written_as_the_published_files_spell_it(
    family, size, expected
):
    cfg = resolve("models", family).config(size)
    assert write_config(resolve("models", family), cfg)["sliding_window_pattern"] == expected


def test_the_class_of_a_tokenizer_has_the_name_that_both_versions_of_transformers_know(tmp_path):
    source = models.directory(
        tmp_path / "new", tokenizer_config={"tokenizer_class": "TokenizersBackend"}
    )
    main(["convert", str(source), str(tmp_path / "written")])
    written = json.loads((tmp_path / "written" / "tokenizer_config.json").read_text())
    assert written == {"tokenizer_class": "PreTrainedTokenizerFast"}
