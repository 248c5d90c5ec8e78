"""Rates of dropout of a config.json are read in the slots where transformers has them."""

import pytest

from flaxformer_lite.pretrained.hf_config import DROPOUT, MAIN_DROPOUT
from tests.pretrained.test_families import FAMILIES, config_of

# No dropout here: of heads, of whole layers, and what drops no activations at random.
UNREAD = {
    "classifier_dropout",
    "classifier_dropout_prob",
    "classifier_dropout_rate",
    "decoder_layerdrop",
    "encoder_layerdrop",
    "layerdrop",
    "moe_token_dropout",
    "normalize_router_prob_before_dropping",
    "pooler_dropout",
    "summary_first_dropout",
    "summary_last_dropout",
    "token_dropout",
}


def read(family, **rates):
    published = FAMILIES[family]["config"] | rates
    return config_of(published, published["architectures"][0])


def names_in(family):
    return [name for name in FAMILIES[family]["config"] if "drop" in name]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_rate_is_that_of_its_slot(family):
    slots = {name: slot for slot, names in DROPOUT.items() for name in names}
    stated = [name for name in names_in(family) if name not in UNREAD]
    assert set(stated) <= {*slots, *MAIN_DROPOUT}
    off = dict.fromkeys(stated, 0.0)
    for name in stated:
        cfg = read(family, **off | {name: 0.3})
        assert cfg.dropout == 0.3
        if name in slots:
            assert cfg.dropout_at == (slots[name],)
        else:
            own = {slots[one] for one in stated if one in slots}
            assert "branch" in cfg.dropout_at and not own & {*cfg.dropout_at}
    if set(stated) & {*MAIN_DROPOUT}:
        assert read(family, **off).dropout == 0.0


def test_rates_that_differ_are_told_and_one_that_is_given_counts(caplog):
    published = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2}
    cfg = read("big_bird", **published)
    assert cfg.dropout == 0.1 and "attention" in cfg.dropout_at
    assert "dropout of 0.2 (attention) in other slots than 0.1" in caplog.text
