"""Parameter counts equal the published ones. No array is built."""

import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite import registry

PUBLISHED = {
    ("transformer", "base", "lm"): 63_045_632,  # by hand; table 3 rounds to 65M
    ("bert", "base", "none"): 109_482_240,
    ("bert", "large", "none"): 335_141_888,
    ("gpt2", "small", "lm"): 124_439_808,
    ("gpt2", "medium", "lm"): 354_823_168,
    ("gpt2", "large", "lm"): 774_030_080,
    ("gpt2", "xl", "lm"): 1_557_611_200,
    ("t5", "small", "lm"): 60_506_624,
    ("t5", "base", "lm"): 222_903_552,
    ("t5", "large", "lm"): 737_668_096,
    ("t5", "3b", "lm"): 2_851_598_336,
    ("t5", "11b", "lm"): 11_307_321_344,
    ("t5", "v1_1_small", "lm"): 76_961_152,
    ("t5", "v1_1_base", "lm"): 247_577_856,
    ("t5", "v1_1_large", "lm"): 783_150_080,
    ("t5", "v1_1_xl", "lm"): 2_849_757_184,
    ("t5", "v1_1_xxl", "lm"): 11_135_332_352,
    ("llama", "1b", "lm"): 1_100_048_384,
    ("llama", "7b", "lm"): 6_738_415_616,
    ("llama", "llama2_70b", "lm"): 68_976_648_192,
    ("llama", "llama3_8b", "lm"): 8_030_261_248,
}


def shapes(cfg):
    model = registry.resolve("models", cfg.family).Model(cfg)
    ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if cfg.encoder_layers and cfg.decoder_layers else {})
    return jax.eval_shape(model.init, jax.random.key(0), **inputs)["params"]


@pytest.mark.parametrize(("family", "preset", "head"), PUBLISHED)
def test_parameter_count_is_the_published_one(family, preset, head):
    cfg = registry.resolve("models", family).config(preset, head=head, scan=True)
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes(cfg)))
    assert count == PUBLISHED[family, preset, head]
