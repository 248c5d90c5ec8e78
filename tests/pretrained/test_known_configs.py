"""The config.json of well-known published models reads as the model that it is; no weights are
needed."""

import json
import logging
from pathlib import Path

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.pretrained.hf_config import family_of, head_of, read_config
from flaxformer_lite.pretrained.known_fields import KNOWN

FIELDS = json.loads(Path(__file__).with_name("known_configs.json").read_text())
# head, vocabulary, width, heads, width of the feed-forward, layers of the encoder and the decoder
SIZES = {
    "bert-base-uncased": ("masked_lm", 30522, 768, 12, 3072, 12, 0),
    "bert-large-uncased": ("masked_lm", 30522, 1024, 16, 4096, 24, 0),
    "bert-base-cased": ("masked_lm", 28996, 768, 12, 3072, 12, 0),
    "bert-base-multilingual-cased": ("masked_lm", 119547, 768, 12, 3072, 12, 0),
    "bert-base-chinese": ("masked_lm", 21128, 768, 12, 3072, 12, 0),
    "dslim/bert-base-NER": ("token_classification", 28996, 768, 12, 3072, 12, 0),
    "sentence-transformers/all-MiniLM-L6-v2": ("none", 30522, 384, 12, 1536, 6, 0),
    "BAAI/bge-small-en-v1.5": ("none", 30522, 384, 12, 1536, 12, 0),
    "prajjwal1/bert-tiny": ("none", 30522, 128, 2, 512, 2, 0),
    "roberta-base": ("masked_lm", 50265, 768, 12, 3072, 12, 0),
    "roberta-large": ("masked_lm", 50265, 1024, 16, 4096, 24, 0),
    "distilroberta-base": ("masked_lm", 50265, 768, 12, 3072, 6, 0),
    "cardiffnlp/twitter-roberta-base-sentiment-latest": (
        "sequence_classification",
        50265,
        768,
        12,
        3072,
        12,
        0,
    ),
    "deepset/roberta-base-squad2": ("question_answering", 50265, 768, 12, 3072, 12, 0),
    "xlm-roberta-base": ("masked_lm", 250002, 768, 12, 3072, 12, 0),
    "xlm-roberta-large": ("masked_lm", 250002, 1024, 16, 4096, 24, 0),
    "distilbert-base-uncased": ("masked_lm", 30522, 768, 12, 3072, 6, 0),
    "distilbert-base-uncased-finetuned-sst-2-english": (
        "sequence_classification",
        30522,
        768,
        12,
        3072,
        6,
        0,
    ),
    "distilbert-base-cased-distilled-squad": ("question_answering", 28996, 768, 12, 3072, 6, 0),
    "albert-base-v2": ("masked_lm", 30000, 768, 12, 3072, 12, 0),
    "albert-xxlarge-v2": ("masked_lm", 30000, 4096, 64, 16384, 12, 0),
    "google/electra-small-discriminator": ("pretraining", 30522, 256, 4, 1024, 12, 0),
    "google/electra-base-discriminator": ("pretraining", 30522, 768, 12, 3072, 12, 0),
    "google/electra-small-generator": ("masked_lm", 30522, 256, 4, 1024, 12, 0),
    "junnyu/roformer_chinese_base": ("masked_lm", 50000, 768, 12, 3072, 12, 0),
    "gpt2": ("lm", 50257, 768, 12, 3072, 0, 12),
    "gpt2-xl": ("lm", 50257, 1600, 25, 6400, 0, 48),
    "distilgpt2": ("lm", 50257, 768, 12, 3072, 0, 6),
    "microsoft/DialoGPT-medium": ("lm", 50257, 1024, 16, 4096, 0, 24),
    "EleutherAI/gpt-neo-125m": ("lm", 50257, 768, 12, 3072, 0, 12),
    "roneneldan/TinyStories-1M": ("lm", 50257, 64, 16, 256, 0, 8),
    "EleutherAI/gpt-j-6b": ("lm", 50400, 4096, 16, 16384, 0, 28),
    "EleutherAI/pythia-160m": ("lm", 50304, 768, 12, 3072, 0, 12),
    "EleutherAI/pythia-14m": ("lm", 50304, 128, 4, 512, 0, 6),
    "EleutherAI/gpt-neox-20b": ("lm", 50432, 6144, 64, 24576, 0, 44),
    "facebook/opt-125m": ("lm", 50272, 768, 12, 3072, 0, 12),
    "facebook/opt-350m": ("lm", 50272, 1024, 16, 4096, 0, 24),
    "facebook/opt-13b": ("lm", 50272, 5120, 40, 20480, 0, 40),
    "bigscience/bloom-560m": ("lm", 250880, 1024, 16, 4096, 0, 24),
    "bigscience/bloom": ("lm", 250880, 14336, 112, 57344, 0, 70),
    "huggyllama/llama-7b": ("lm", 32000, 4096, 32, 11008, 0, 32),
    "meta-llama/Llama-2-7b-hf": ("lm", 32000, 4096, 32, 11008, 0, 32),
    "meta-llama/Meta-Llama-3-8B": ("lm", 128256, 4096, 32, 14336, 0, 32),
    "meta-llama/Llama-3.2-1B": ("lm", 128256, 2048, 32, 8192, 0, 16),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": ("lm", 32000, 2048, 32, 5632, 0, 22),
    "HuggingFaceTB/SmolLM2-135M": ("lm", 49152, 576, 9, 1536, 0, 30),
    "a Llama out of a gguf file": ("lm", 32000, 4096, 32, 11008, 0, 32),
    "mistralai/Mistral-7B-v0.1": ("lm", 32000, 4096, 32, 14336, 0, 32),
    "mistralai/Mistral-7B-Instruct-v0.3": ("lm", 32768, 4096, 32, 14336, 0, 32),
    "Qwen/Qwen2-0.5B": ("lm", 151936, 896, 14, 4864, 0, 24),
    "Qwen/Qwen2.5-7B": ("lm", 152064, 3584, 28, 18944, 0, 28),
    "Qwen/Qwen3-0.6B": ("lm", 151936, 1024, 16, 3072, 0, 28),
    "google/gemma-2b": ("lm", 256000, 2048, 8, 16384, 0, 18),
    "google/gemma-2-2b": ("lm", 256000, 2304, 8, 9216, 0, 26),
    "google/gemma-2-9b-it": ("lm", 256000, 3584, 16, 14336, 0, 42),
    "t5-small": ("lm", 32128, 512, 8, 2048, 6, 6),
    "google/t5-v1_1-base": ("lm", 32128, 768, 12, 2048, 12, 12),
    "google/flan-t5-base": ("lm", 32128, 768, 12, 2048, 12, 12),
    "google/byt5-small": ("lm", 384, 1472, 6, 3584, 12, 4),
    "google/mt5-small": ("lm", 250112, 512, 6, 1024, 8, 8),
    "google/umt5-small": ("lm", 256384, 512, 6, 1024, 8, 8),
    "facebook/bart-base": ("none", 50265, 768, 12, 3072, 6, 6),
    "facebook/bart-large-cnn": ("lm", 50264, 1024, 16, 4096, 12, 12),
    "facebook/bart-large-mnli": ("sequence_classification", 50265, 1024, 16, 4096, 12, 12),
    "facebook/mbart-large-50-many-to-many-mmt": ("lm", 250054, 1024, 16, 4096, 12, 12),
    "Helsinki-NLP/opus-mt-en-de": ("lm", 58101, 512, 8, 2048, 6, 6),
    "google/pegasus-xsum": ("lm", 96103, 1024, 16, 4096, 16, 16),
    "microsoft/phi-2": ("lm", 51200, 2560, 32, 10240, 0, 32),
    "sentence-transformers/all-mpnet-base-v2": ("masked_lm", 30527, 768, 12, 3072, 12, 0),
    "facebook/esm2_t6_8M_UR50D": ("masked_lm", 33, 320, 20, 1280, 6, 0),
    "facebook/nllb-200-distilled-600M": ("lm", 256206, 1024, 16, 4096, 12, 12),
    "camembert-base": ("masked_lm", 32005, 768, 12, 3072, 12, 0),
    "answerdotai/ModernBERT-base": ("masked_lm", 50368, 768, 12, 1152, 22, 0),
    "facebook/xglm-564M": ("lm", 256008, 1024, 16, 4096, 0, 24),
    "microsoft/Phi-3-mini-4k-instruct": ("lm", 32064, 3072, 32, 8192, 0, 32),
    "tiiuae/falcon-7b": ("lm", 65024, 4544, 71, 18176, 0, 32),
    "google/gemma-3-1b-it": ("lm", 262144, 1152, 4, 6912, 0, 26),
    "allenai/OLMo-1B-hf": ("lm", 50304, 2048, 16, 8192, 0, 16),
    "allenai/OLMo-2-1124-7B": ("lm", 100352, 4096, 32, 11008, 0, 32),
    "bigcode/starcoder2-3b": ("lm", 49152, 3072, 24, 12288, 0, 30),
    "stabilityai/stablelm-2-1_6b": ("lm", 100352, 2048, 32, 5632, 0, 24),
    "CohereForAI/c4ai-command-r-v01": ("lm", 256000, 8192, 64, 22528, 0, 40),
    "HuggingFaceTB/SmolLM3-3B": ("lm", 128256, 2048, 16, 11008, 0, 36),
}
# Attributes that transformers sets and nothing reads.
NOTICED = {
    "bigcode/starcoder2-3b": "activation_function, attention_softmax_in_fp32, layer_norm_epsilon,"
    " scale_attention_softmax_in_fp32, scale_attn_weights",
    "deepset/roberta-base-squad2": "name",
    "distilbert-base-uncased": "tie_weights_",
    "distilbert-base-uncased-finetuned-sst-2-english": "tie_weights_",
    "distilbert-base-cased-distilled-squad": "tie_weights_",
    "albert-base-v2": "down_scale_factor, gap_size, net_structure_type, num_memory_blocks",
    "albert-xxlarge-v2": "down_scale_factor, gap_size, net_structure_type, num_memory_blocks",
}


def read(fields):
    family = family_of(fields, Path())
    return read_config(
        family, fields, head_of(family, fields, None if "architectures" in fields else "none")
    )


@pytest.mark.parametrize("name", FIELDS)
def test_it_reads_as_the_model_it_is(name, caplog):
    with caplog.at_level(logging.WARNING, "flaxformer_lite"):
        cfg = read(FIELDS[name])
    sizes = (
        cfg.vocab_size,
        cfg.d_model,
        cfg.num_heads,
        cfg.mlp_dim,
        cfg.encoder_layers,
        cfg.decoder_layers,
    )
    assert (cfg.head, *sizes) == SIZES[name]
    assert [record.args[0] for record in caplog.records] == (
        [NOTICED[name]] if name in NOTICED else []
    )


def test_a_field_that_transformers_computes_with_and_we_do_not_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"token_classification_bias=False.*not supported",
    ):
        read(FIELDS["meta-llama/Llama-2-7b-hf"] | {"token_classification_bias": False})
    with pytest.raises(ConfigError, match="head_dim=32 is not supported for gpt2"):
        read(FIELDS["gpt2"] | {"head_dim": 32})


def test_null_is_absent():
    assert read(FIELDS["gpt2"] | {"head_dim": None}) == read(FIELDS["gpt2"])


def test_the_table_names_these_families():
    """Where a family is new, every field that is not read is refused until the table has it."""
    assert {"", *(fields["model_type"] for fields in FIELDS.values())} <= set(KNOWN)
