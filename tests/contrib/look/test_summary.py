"""Contents of the page of a model, beside masks, scores and predictions that are computed in other
ways."""

import jax
import numpy as np
import pytest

from flaxformer_lite import registry, score
from flaxformer_lite.config import ConfigError, LayerKind
from flaxformer_lite.contrib.look.page import render
from flaxformer_lite.contrib.look.summary import look_inside
from flaxformer_lite.contrib.look.token_losses import masked_losses
from flaxformer_lite.contrib.recurrent.mixers.gru import GruConfig
from flaxformer_lite.inference.inside.capture import capture
from flaxformer_lite.models import deepseek_v2, deepseek_v3
from tests.models.tiny import OWN, built, close, logits_of, small

IDS = [5, 7, 11, 13, 17, 19, 23, 29]
TARGET = [3, 9, 27, 1]


@pytest.mark.parametrize(
    ("family", "overrides", "prefix"),
    [
        pytest.param("gpt2", {"windows": (3, 0)}, True, marks=pytest.mark.nightly),
        pytest.param("bert", {"head": "causal_lm"}, False, marks=pytest.mark.nightly),
        ("bert", {"pattern": (LayerKind(window=3), LayerKind())}, False),
        pytest.param("t5", {}, False, marks=pytest.mark.nightly),
    ],
)
def test_weights_lie_where_the_masks_say(family, overrides, prefix):
    model, params = built(small(family, **overrides))
    target = TARGET if family == "t5" or prefix else []
    inside = look_inside(model, params, IDS, target, prefix=prefix)
    assert len(inside.attentions) == (3 if family == "t5" else 1)
    for maps in inside.attentions:
        sizes = (len(inside.sequences[maps.rows]), len(inside.sequences[maps.columns]))
        assert maps.weights_LNTS.shape == (2, 4, *sizes) and maps.layers == (0, 1)
        close(maps.weights_LNTS.sum(-1), np.ones((2, 4, sizes[0])))
        np.testing.assert_array_equal((maps.weights_LNTS > 0).all(axis=1), maps.visible_LTS)
    if prefix:
        assert inside.attentions[0].visible_LTS[1, 0, 7:9].tolist() == [True, False]


@pytest.mark.nightly
@pytest.mark.parametrize("scan", [False, True])
def test_which_expert_reads_which_token(scan):
    """As the router of the first layer with experts chooses, computed by hand."""
    kinds = {} if scan else deepseek_v2.sparse_after(1, 2, deepseek_v3.SMALL_MOE)
    model, params = built(small("deepseek_v3", scan=scan, **kinds))
    inside = look_inside(model, params, IDS)
    assert [maps.layer for maps in inside.experts] == ([0, 1] if scan else [1])
    last = inside.experts[-1]
    name = "decoder/layer_1"
    _, values = capture(model, params, [IDS], [f"{name}/mlp_in_norm"])
    if scan:
        mlp = jax.tree.map(lambda x: x[1], params["decoder"]["layers"]["block_0"]["mlp"])
    else:
        mlp = params["decoder"]["layer_1"]["mlp"]
    scores_TX = jax.nn.sigmoid(values[f"{name}/mlp_in_norm"][0] @ mlp["router"]["kernel"])
    ranks_TX = np.asarray(scores_TX + mlp["choice_bias"][None])
    groups_TW = ranks_TX.reshape(len(IDS), 4, 2).sum(axis=-1)
    kept_TW = groups_TW >= np.sort(groups_TW, axis=1)[:, -2:-1]
    ranks_TX = np.where(np.repeat(kept_TW, 2, axis=1), ranks_TX, -np.inf)
    chosen_TX = ranks_TX >= np.sort(ranks_TX, axis=1)[:, -2:-1]
    weights_TX = np.where(chosen_TX, scores_TX, 0)
    weights_TX *= 2.5 / weights_TX.sum(axis=1, keepdims=True)
    close(last.weights_XT, weights_TX.T)
    page = render(inside, str, title="x", facts={})
    assert '"name": "decoder, layer 1"' in page and '"expert 7"' in page


def test_losses_of_a_decoder_are_its_scores():
    model, params = built(small("gpt2", number=1))
    whole = look_inside(model, params, IDS).losses
    assert np.isnan(whole.nats_T[0]) and whole.ids_T.tolist() == IDS
    close(whole.nats_T[1:], -score(model, params, [IDS[:1]], [IDS[1:]]).logprobs[0])
    rest = look_inside(model, params, IDS[:3], IDS[3:]).losses
    assert np.isnan(rest.nats_T[:3]).all()
    close(rest.nats_T[3:], whole.nats_T[3:])


@pytest.mark.nightly
def test_losses_of_an_answer_are_its_scores():
    model, params = built(small("t5", number=1))
    inside = look_inside(model, params, IDS, TARGET)
    assert inside.losses.ids_T.tolist() == TARGET
    assert inside.sequences["decoder"].tolist() == [0, *TARGET[:-1]]
    close(inside.losses.nats_T, -score(model, params, [IDS], [TARGET]).logprobs[0])
    np.testing.assert_array_equal(inside.goals_T, TARGET)
    both = {"input_ids": np.asarray([IDS]), "decoder_input_ids": inside.sequences["decoder"][None]}
    best_T = logits_of(model, params, **both)[0].argmax(-1)
    np.testing.assert_array_equal(inside.lens.ids_LBTK[-1, 0, :, 0], best_T)


@pytest.mark.nightly
def test_losses_of_a_masked_lm_are_those_of_one_mask_at_a_time():
    model, params = built(small("bert", number=1))
    losses = look_inside(model, params, IDS, mask_id=2, special=(5, 29)).losses
    assert np.flatnonzero(np.isnan(losses.nats_T)).tolist() == [0, 7]
    ids_1T = np.asarray([IDS])
    ids_1T[0, 3] = 2
    logits_V = np.asarray(model.apply({"params": params}, ids_1T).logits[0, 3])
    close(losses.nats_T[3], np.log(np.exp(logits_V).sum()) - logits_V[13])
    assert masked_losses(model, params, ids_1T[0], 2, special=set(IDS) | {2}) is None, "no text"


def test_a_model_without_attention_or_head():
    model, params = built(small("gpt2", mixer=GruConfig(), head="none"))
    inside = look_inside(model, params, IDS)
    assert not inside.attentions and inside.lens is None and inside.losses is None
    assert inside.norms["decoder"].shape == (3, 8) and len(inside.positions) == 1


@pytest.mark.nightly
def test_one_token_has_no_loss_and_no_number_is_no_page():
    model, params = built(small("gpt2"))
    inside = look_inside(model, params, [5])
    last = jax.tree.map(lambda x: x * np.nan, params["decoder"]["layer_1"])
    diverged = params | {"decoder": params["decoder"] | {"layer_1": last}}
    with pytest.raises(ConfigError, match=r"the decoder's.*infinite.*1 on"):
        look_inside(model, diverged, [5])
    assert inside.losses is None and inside.goals_T.tolist() == [-1]


# They predict no words.
ENCODE_ONLY = ("clip_text_model", "embedding_gemma", "siglip_text_model")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "family", [family for family in registry.available("models") if family not in OWN]
)
def test_every_family(family):
    # Marian's is beyond a small vocabulary
    model, params = built(small(family, decoder_start_token_id=0))
    target = TARGET if model.skeleton == "encoder_decoder" else []
    inside = look_inside(model, params, IDS, target, mask_id=2)
    for maps in inside.attentions:
        np.testing.assert_array_equal((maps.weights_LNTS > 0).all(axis=1), maps.visible_LTS)
    if family in ENCODE_ONLY:
        assert inside.losses is None
    else:
        assert np.isfinite(inside.losses.nats_T).sum() >= 4
    assert inside.lens is None or inside.lens.layers[-1] == "layer 1"
    assert bool(inside.attentions) == ("recurrent" not in family)
    assert render(inside, str, title=family, facts={})
