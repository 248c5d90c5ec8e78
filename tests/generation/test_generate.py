"""Greedy generation is the argmax of the full forward pass, a batch gives what each prompt gives alone, and calls after
the first compile nothing."""

import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import generate, registry
from flaxformer_lite.training import compiles
from tests.models.tiny import built, ids, logits_of, small, two_sided

CASES = {
    "gpt2": ("gpt2", {}),
    "gpt2_window_scan": ("gpt2", {"windows": (3, 0), "scan": True}),
    "gpt2_t5_buckets": ("gpt2", {"position": "t5_buckets"}),
    "gpt2_alibi": ("gpt2", {"position": "alibi"}),
    "llama_grouped": ("llama", {"num_kv_heads": 2, "windows": (4,)}),
    "llama_bfloat16": ("llama", {"dtype": "bfloat16", "param_dtype": "bfloat16"}),
    "t5": ("t5", {}),
    "t5_scan": ("t5", {"scan": True}),
    "transformer": ("transformer", {}),
}
NEW = 6


def model_of(case):
    family, overrides = CASES[case]
    if "position" in overrides:
        overrides = overrides | {"position": registry.resolve_class("positions", overrides["position"])()}
    cfg = small(family, **overrides)
    return cfg, *built(cfg)


def greedy(cfg, model, params, prompt, new=NEW):
    """The definition: the whole row through the model, the last column's argmax, again. Rows keep one length, so that
    the forward pass compiles once."""
    row = jnp.asarray([[0] if two_sided(cfg) else prompt], jnp.int32)
    start = row.shape[1]
    row = jnp.pad(row, ((0, 0), (0, new)))
    for column in range(start, start + new):
        if two_sided(cfg):
            logits = logits_of(model, params, input_ids=jnp.asarray([prompt], jnp.int32), decoder_input_ids=row)
        else:
            logits = logits_of(model, params, input_ids=row)
        row = row.at[0, column].set(jnp.argmax(logits[0, column - 1]).astype(jnp.int32))
    return np.asarray(row[0])


@pytest.mark.parametrize("case", CASES)
def test_unequal_prompts_continue_as_the_full_forward_says(case):
    cfg, model, params = model_of(case)
    prompts = [np.asarray(ids(seed, 1, length)[0]).tolist() for seed, length in ((1, 7), (2, 4))]
    expected = [greedy(cfg, model, params, prompt) for prompt in prompts]
    for side in ("left", "right"):
        pads = [[0] * (7 - len(p)) for p in prompts]
        rows = [pad + p if side == "left" else p + pad for p, pad in zip(prompts, pads, strict=True)]
        keep = [[int(token > 0) for token in row] for row in rows]
        if two_sided(cfg) and side == "left":
            continue  # an encoder's positions count its columns, as in transformers
        written = generate(model, params, np.asarray(rows, np.int64), jnp.asarray(keep), max_new_tokens=NEW)
        for row, want in zip(written, expected, strict=True):
            np.testing.assert_array_equal(row[-len(want) :], want)


def test_later_calls_compile_nothing():
    _, model, params = model_of("llama_grouped")
    generate(model, params, np.ones((2, 5), int), max_new_tokens=3, temperature=0.5, seed=1, eos_token_id=3)
    before = compiles.total()
    for length, new in ((3, 3), (9, 5), (16, 16)):
        prompts = np.ones((2, length), int)
        generate(model, params, prompts, max_new_tokens=new, temperature=0.7, seed=new, eos_token_id=new)
    assert compiles.total() == before
