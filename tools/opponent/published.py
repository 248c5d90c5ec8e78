"""A directory of tiny published weights with a tokenizer, made once and copied for each case."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

MAKE = """
import sys, numpy as np, jax
from flaxformer_lite import build_model, save_pretrained
from flaxformer_lite.models import gpt2
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flax.traverse_util import unflatten_dict
sizes = dict(vocab_size=320, max_length=64, d_model=16, num_heads=2, decoder_layers=2, mlp_dim=32)
model = build_model(gpt2.config("tiny", **sizes, dropout=0.0))
rng = np.random.default_rng(int(sys.argv[2]))
shapes = parameter_shapes(model)
params = {k: rng.standard_normal(v.shape).astype(v.dtype) for k, v in shapes.items()}
save_pretrained(sys.argv[1], model, unflatten_dict(params, sep="/"))

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers
own = tokenizers.Tokenizer(models.BPE())
own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
own.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(
    vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
)
own.train_from_iterator([sys.argv[3]] * 9, trainer)
own.save(f"{sys.argv[1]}/tokenizer.json")
"""
TEXT = "Hello world, it is a test of a tokenizer."
TOKENIZER_CONFIG = {
    "model_max_length": 64,
    "eos_token": "<|end|>",
    "pad_token": "<|end|>",
    "padding_side": "right",
    "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
}
GENERATION_CONFIG = {
    "eos_token_id": 0,
    "pad_token_id": 0,
    "do_sample": True,
    "temperature": 0.7,
    "top_k": 5,
    "top_p": 0.9,
    "min_length": 0,
    "repetition_penalty": 1.1,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "max_new_tokens": 5,
    "length_penalty": 1.0,
    "suppress_tokens": [3],
    "bad_words_ids": [[4]],
    "early_stopping": False,
    "forced_bos_token_id": None,
    "min_new_tokens": 0,
}


def make(folder: Path, seed: int = 0) -> Path:
    """Writes the directory in a process of its own, as one that has run XLA or tokenizers is better
    not forked."""
    made = folder / f"base{seed}"
    subprocess.run([sys.executable, "-c", MAKE, str(made), str(seed), TEXT], check=True, cwd=folder)
    (made / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
    (made / "generation_config.json").write_text(json.dumps(GENERATION_CONFIG))
    (made / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": "<|end|>", "pad_token": {"content": "<|end|>"}})
    )
    return made


def copied(base: Path, where: Path) -> Path:
    """Copies the directory to a place that is free."""
    number = sum(1 for _ in where.glob("copy*"))
    while True:
        try:
            return Path(shutil.copytree(base, where / f"copy{number}"))
        except FileExistsError:
            number += 1
