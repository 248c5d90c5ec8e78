"""Parameter counts equal the published ones. No array is built."""

import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite import registry
from tests.marks import daily

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
    ("llama", "llama3_70b", "lm"): 70_553_706_496,
    ("recurrent", "medium", "lm"): 19_775_200,  # by hand; Zaremba et al. say 20M and 66M
    ("recurrent", "large", "lm"): 66_022_000,
    ("roberta", "base", "none"): 124_645_632,
    ("roberta", "large", "none"): 355_359_744,
    ("xlm_roberta", "base", "none"): 278_043_648,
    ("distilbert", "base", "none"): 66_362_880,
    ("albert", "base", "none"): 11_683_584,
    ("albert", "xxlarge", "none"): 222_595_584,
    ("electra", "base", "none"): 108_891_648,
    ("mistral", "7b", "lm"): 7_241_732_096,
    ("qwen2", "0.5b", "lm"): 494_032_768,
    ("qwen2", "7b", "lm"): 7_615_616_512,
    ("qwen3", "0.6b", "lm"): 596_049_920,
    ("qwen3", "8b", "lm"): 8_190_735_360,
    ("gemma", "2b", "lm"): 2_506_172_416,
    ("gemma", "7b", "lm"): 8_537_680_896,
    ("gemma2", "2b", "lm"): 2_614_341_888,
    ("gemma2", "9b", "lm"): 9_241_705_984,
    ("gemma2", "27b", "lm"): 27_227_128_320,
    ("gpt_neo", "125m", "lm"): 125_198_592,
    ("gpt_neo", "1.3b", "lm"): 1_315_575_808,
    ("gpt_neo", "2.7b", "lm"): 2_651_307_520,
    ("gptj", "6b", "lm"): 6_050_882_784,
    ("gpt_neox", "pythia_160m", "lm"): 162_322_944,
    ("gpt_neox", "20b", "lm"): 20_554_567_680,
    ("bloom", "560m", "lm"): 559_214_592,
    ("bloom", "7b1", "lm"): 7_069_016_064,
    ("bloom", "176b", "lm"): 176_247_271_424,
    ("opt", "125m", "lm"): 125_239_296,
    ("opt", "350m", "lm"): 331_196_416,
    ("opt", "1.3b", "lm"): 1_315_758_080,
    ("opt", "6.7b", "lm"): 6_658_473_984,
    # With the bias on the logits, which torch counts as a buffer.
    ("bart", "base", "lm"): 139_420_416 + 50_265,
    ("bart", "large", "lm"): 406_291_456 + 50_265,
    ("pegasus", "large", "lm"): 568_699_904 + 96_103,
    ("mt5", "small", "lm"): 300_176_768,
    ("mt5", "base", "lm"): 582_401_280,
    ("umt5", "small", "lm"): 306_601_984,
}


# of families that are compositions of parts, which tests/pretrained/test_families.py builds
COMPOSED = {
    ("phi", "1", "lm"): 1_418_270_720,
    ("phi", "2", "lm"): 2_779_683_840,
    ("mpnet", "base", "none"): 109_486_464,
    ("clip_text_model", "b32", "none"): 63_165_952,
    ("clip_text_model", "l14", "none"): 123_060_480,
    ("siglip_text_model", "base", "none"): 110_271_744,
    ("siglip_text_model", "so400m", "none"): 449_734_896,
    ("m2m_100", "418m", "lm"): 483_905_536,
    ("m2m_100", "nllb_600m", "lm"): 615_073_792,
    ("m2m_100", "nllb_3.3b", "lm"): 3_344_863_232,
    ("blenderbot_small", "90m", "lm"): 87_508_992 + 54_944,
    ("esm", "8m", "none"): 7_511_801,
    ("gte", "base", "none"): 305_368_320,
    ("phi3", "mini", "lm"): 3_821_079_552,
    ("smollm3", "3b", "lm"): 3_075_098_624,
    ("olmo", "1b", "lm"): 1_176_764_416,
    ("olmo", "7b", "lm"): 6_888_095_744,
    ("stablelm", "2_1.6b", "lm"): 1_644_515_328,
    ("stablelm", "3b", "lm"): 2_795_443_200,
    ("stablelm", "2_12b", "lm"): 12_143_185_920,
    ("starcoder2", "3b", "lm"): 3_030_371_328,
    ("falcon", "7b", "lm"): 6_921_720_704,
    ("falcon", "rw_1b", "lm"): 1_311_625_216,
    ("cohere", "command_r", "lm"): 34_980_831_232,
    ("cohere2", "r7b", "lm"): 8_028_033_024,
    ("modernbert", "base", "masked_lm"): 149_655_232,
    ("modernbert", "large", "masked_lm"): 395_881_664,
    ("xglm", "564m", "lm"): 564_463_616,
    ("embedding_gemma", "300m", "none"): 302_863_104,
    ("gpt_oss", "20b", "lm"): 20_914_757_184,
    ("switch_transformers", "base_8", "lm"): 619_339_008,
    ("switch_transformers", "base_128", "lm"): 7_415_217_408,
}


def shapes(cfg):
    model = registry.resolve("models", cfg.family).Model(cfg)
    ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    inputs = {"input_ids": ids} | (
        {"decoder_input_ids": ids} if cfg.encoder_layers and cfg.decoder_layers else {}
    )
    return jax.eval_shape(model.init, jax.random.key(0), **inputs)["params"]


# One of each skeleton; names and shapes of all families' files are those of transformers, as
# tests/pretrained checks.
DAILY = {
    ("bert", "base", "none"),
    ("gpt2", "small", "lm"),
    ("t5", "small", "lm"),
    ("llama", "1b", "lm"),
    ("recurrent", "medium", "lm"),
}


@pytest.mark.parametrize(("family", "preset", "head"), daily(PUBLISHED | COMPOSED, DAILY))
def test_parameter_count_is_the_published_one(family, preset, head):
    cfg = registry.resolve("models", family).config(preset, head=head, scan=True)
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes(cfg)))
    assert count == (PUBLISHED | COMPOSED)[family, preset, head]
