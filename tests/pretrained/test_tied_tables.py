"""A tied table that a file has only under another of its names is read, as in transformers.

The names are transformers' `_tied_weights_keys`, with those of old files.
"""

import re

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flaxformer_lite import load_pretrained, save_pretrained
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.registry import resolve
from tests.marks import daily
from tests.models.tiny import built, small
from tests.pretrained.test_families import FAMILIES, write_files

T5 = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
BART = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
BERT = ("cls.predictions.decoder.weight",)
ROBERTA = ("lm_head.decoder.weight",)
LLAMA = ("lm_head.weight",)
NAMES = {
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5", "switch_transformers"), T5),
    **dict.fromkeys(("bart", "mbart", "marian", "m2m_100", "nllb_moe", "pegasus", "plbart"), BART),
    **dict.fromkeys(("blenderbot", "blenderbot_small"), BART),
    **dict.fromkeys(("bert", "big_bird", "deberta", "deberta_v2", "nomic_bert", "roformer"), BERT),
    **dict.fromkeys(("roberta", "camembert", "xlm_roberta", "data2vec_text", "mpnet"), ROBERTA),
    **dict.fromkeys(("esm", "roberta_prelayernorm"), ROBERTA),
    "albert": ("predictions.decoder.weight",),
    "distilbert": ("vocab_projector.weight",),
    "electra": ("generator_lm_head.weight",),
    "modernbert": ("decoder.weight",),
    **dict.fromkeys(("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "cohere"), LLAMA),
    **dict.fromkeys(("gpt2", "gpt_neo", "opt", "bloom", "xglm", "olmoe", "mixtral"), LLAMA),
    **dict.fromkeys(("bart_decoder", "granite", "phi3"), LLAMA),
    "t5gemma": ("lm_head.out_proj.weight",),
}
TABLE = re.compile(r"(^|\.)(shared|embed_tokens|tok_embeddings|word_embeddings|wte)\.weight$")
CASES = [(family, name) for family, names in NAMES.items() for name in names]
DAILY = {
    ("t5", "decoder.embed_tokens.weight"),
    ("bart", "lm_head.weight"),
    ("bert", "cls.predictions.decoder.weight"),
    ("llama", "lm_head.weight"),
}


def saved(family, folder):
    """Writes a model with tied logits; returns its tensors and the name of its table."""
    head = "lm"
    if "masked_lm" in resolve("models", family).PUBLISHED.heads:
        head = "masked_lm"
    if family in FAMILIES:
        config = FAMILIES[family]["config"] | {"tie_word_embeddings": True}
        write_files(config, folder)
    else:
        sizes = {"mlp_dim": 64} if family == "bloom" else {}
        cfg = small(family, number=1, head=head, tie_embeddings=True, **sizes)
        save_pretrained(folder, *built(cfg))
    tensors = load_file(folder / "model.safetensors")
    table, *_ = sorted(name for name in tensors if TABLE.search(name))  # the decoder's first
    return tensors, table


@pytest.mark.parametrize(("family", "name"), daily(CASES, DAILY))
def test_another_name_stands_for_the_table(family, name, tmp_path):
    folder = tmp_path / "source"
    tensors, table = saved(family, folder)
    model, due = load_pretrained(folder)
    tensors[name] = tensors.pop(table)
    save_file(tensors, folder / "model.safetensors")
    again, got = load_pretrained(folder)
    assert again.cfg == model.cfg
    jax.tree.map(np.testing.assert_array_equal, got, due)


def test_two_other_names_must_agree(tmp_path):
    tensors, table = saved("t5", tmp_path / "source")
    moved = tensors.pop(table)
    others = {"encoder.embed_tokens.weight": moved, "decoder.embed_tokens.weight": moved + 1}
    save_file(tensors | others, tmp_path / "source" / "model.safetensors")
    with pytest.raises(WeightsError, match=r"decoder.embed_tokens.weight differs from shared"):
        load_pretrained(tmp_path / "source")


def test_the_logits_of_an_untied_model_do_not_stand_for_its_table(tmp_path):
    model, params = built(small("llama", number=1, head="lm", tie_embeddings=False))
    save_pretrained(tmp_path, model, params)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.embed_tokens.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"no tensor embed_tokens.weight"):
        load_pretrained(tmp_path)
