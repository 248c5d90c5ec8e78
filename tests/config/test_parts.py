"""Records of layers refuse what their modules would run wrongly, or trip over."""

import re

import pytest

from flaxformer_lite.config import (
    ConfigError,
    Execution,
    LayerConfig,
    NormConfig,
    StackConfig,
    from_config_dict,
)
from flaxformer_lite.nn.feed_forwards.mlp import MlpConfig
from flaxformer_lite.nn.mixers.attention import Attention, AttentionConfig
from flaxformer_lite.nn.positions.rope import Rope

NEAR, FAR = (LayerConfig(mixer=AttentionConfig(num_heads=2, window=window)) for window in (2, 0))


def attend(*_):
    """An attention of one's own."""


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: LayerConfig(mixer=MlpConfig()),
            "mixer=MlpConfig(...): must be a record of type MixerConfig, such as A",
        ),
        (
            lambda: LayerConfig(mixer=Attention(AttentionConfig(num_heads=2))),
            "mixer=Attention(...): must be a record",
        ),
        (
            lambda: LayerConfig(mixer=None, cross=MlpConfig()),
            "cross=MlpConfig(...): must be a record of type MixerConfig",
        ),
        (
            lambda: LayerConfig(mixer=None, feed_forward=MlpConfig),
            "feed_forward=MlpConfig (the class, without its paren",
        ),
        (
            lambda: LayerConfig(mixer=None, norm="rms"),
            "norm='rms': must be a record of type NormConfig",
        ),
        (
            lambda: AttentionConfig(num_heads=2, position=Rope),
            "position=Rope (the class, without its parentheses): must be",
        ),
        (
            lambda: AttentionConfig(num_heads=2, position="rope"),
            "position='rope': must be a record of type Encoding, such",
        ),
        (
            lambda: AttentionConfig(num_heads=2, position=object()),
            "derives from flaxformer_lite.nn.positions.encoding.Encoding, as a dataclass(",
        ),
        (
            lambda: Execution(attention=attend),
            "must be str, not function. Write its name, 'tests.config.test_parts:attend'.",
        ),
        (
            lambda: AttentionConfig(num_heads=2, qk_norm="rms"),
            "qk_norm='rms': must be a record of type NormConfig or None",
        ),
        (
            lambda: StackConfig(num_layers=1, pattern=NEAR),
            "pattern=LayerConfig(...): must be a tuple, (LayerConfig(...),).",
        ),
        (
            lambda: StackConfig(num_layers=1, pattern=(MlpConfig(),)),
            "pattern=(MlpConfig(...),): must be a record of type LayerConfig, not",
        ),
        (
            lambda: StackConfig(num_layers=1, pattern=(NEAR,), final_norm="rms"),
            "final_norm='rms': must be a record of",
        ),
    ],
)
def test_a_nested_part_is_a_record_of_its_type(build, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LayerConfig(mixer=None, norm_at="in"), "norm_at='in': must be a tuple, ('in',)."),
        (lambda: LayerConfig(mixer=None, norm_at=["in", "out"]), "must be a tuple, ('in', 'out')."),
        (
            lambda: AttentionConfig(num_heads=2, bias="query"),
            "bias='query': must be a tuple, ('query',).",
        ),
        (
            lambda: AttentionConfig(num_heads=2, bias=True),
            "bias=True: must be a tuple, such as ('query',), not bool.",
        ),
        (lambda: Execution(dropout_at="mlp"), "dropout_at='mlp': must be a tuple, ('mlp',)."),
        (lambda: NormConfig(kind=("rms",)), "kind=('rms',): must be str, one of layer, "),
    ],
)
def test_a_tuple_of_names_is_not_one_name(build, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        build()


def test_a_page_may_write_a_list():
    assert from_config_dict(Execution, {"dropout_at": ["mlp"]}).dropout_at == ("mlp",)


@pytest.mark.parametrize(
    ("share", "message"),
    [
        ((0, 5), "layer 1 must use weights from 0 to 1, not 5"),
        ((0, -1), "must not be negative"),
        ((0, 0), "layers 0 and 1 are of different kinds"),
        ((0,), "needs one entry for each of the 2 layers"),
    ],
)
def test_shared_weights_exist_and_are_of_one_kind(share, message):
    with pytest.raises(ConfigError, match=re.escape(f"share={share}: {message}")):
        StackConfig(num_layers=2, pattern=(NEAR, FAR), share=share)


def test_weights_may_be_shared_in_turns_and_in_groups():
    assert StackConfig(num_layers=4, pattern=(NEAR, FAR), share=(0, 1, 0, 1)).share
    assert StackConfig(num_layers=4, pattern=(NEAR,), share=(0, 0, 1, 1)).share
