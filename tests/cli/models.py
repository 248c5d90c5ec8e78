"""Small models with tokenizers, as directories."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer, processors

from flaxformer_lite.config import TokenizerConfig
from flaxformer_lite.models import build_model
from flaxformer_lite.save_model import save_pretrained
from flaxformer_lite.text.tokenizer_training import train

SIZES = {"d_model": 16, "num_heads": 2, "mlp_dim": 32}
LAYERS = {
    "gpt2": {"decoder_layers": 2, "max_length": 64},
    "bert": {"encoder_layers": 1, "max_length": 64},
    "t5": {"encoder_layers": 1, "decoder_layers": 1, "head_dim": 8},
}
WORDS = ["zero one two three", "four five six seven", "eight nine ten eleven", "naïve 日本 🙂"]


@functools.cache
def tokenizer():
    """A byte-level BPE of a few counting words."""
    return train(TokenizerConfig(name="byte_bpe", vocab_size=420), WORDS * 20)


@functools.cache
def weights(family, head):
    """A model with random weights."""
    head = {"head": head} if head else {}
    vocabulary = -(-tokenizer().vocab_size // 64) * 64
    model = build_model(family, "tiny", vocab_size=vocabulary, **SIZES, **LAYERS[family], **head)
    ids = jnp.zeros((1, 2), jnp.int32)
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if family == "t5" else {})
    shapes = jax.eval_shape(model.init, jax.random.key(0), **inputs)["params"]
    draw = np.random.default_rng(0)
    return model, jax.tree.map(lambda x: 0.5 * draw.standard_normal(x.shape, np.float32), shapes)


def directory(folder, family="gpt2", head=None, **companions):
    """Published weights of random numbers with a tokenizer, and with `companions` as JSON files."""
    folder.mkdir(parents=True, exist_ok=True)
    save_pretrained(folder, *weights(family, head))
    own = tokenizer()
    published = Tokenizer.from_str(own.definition.decode())
    if family == "bert":
        marks = [("[CLS]", own.cls_id), ("[SEP]", own.sep_id)]
        published.post_processor = processors.TemplateProcessing(
            "[CLS] $A [SEP]", special_tokens=marks
        )
    published.save(str(folder / "tokenizer.json"))
    for name, values in companions.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return folder
