"""The training loss of families with experts is torch's, with the router's losses off and on.

tools/make_router_fixtures.py stores torch's; a case has labels and padding.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer_lite import load_pretrained, save_pretrained
from flaxformer_lite.config import ConfigError
from flaxformer_lite.models.common.experts import find_experts
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.pretrained.hf_config import read_config, write_config
from flaxformer_lite.registry import resolve
from flaxformer_lite.training.program import auxiliary_losses
from tests.pretrained import recipe, router_losses
from tests.pretrained.test_families import write_files

THEIRS = json.loads(router_losses.STORED.read_text())
WITHOUT = ("deepseek_v2", "deepseek_v3", "glm4_moe")  # in transformers


def model_of(stem, changes, folder, **execution):
    """The recipe's model of a family, read from its files."""
    write_files(router_losses.family(stem)["config"] | changes, folder)
    return load_pretrained(folder, **execution)


def given_to(model):
    seq2seq = model.cfg.skeleton == "encoder_decoder"
    return recipe.inputs(model.cfg.vocab_size, model.cfg.pad_token_id, seq2seq=seq2seq)


def routers_of(model, params, given):
    """The output of a training step without dropout, and the losses of its routers."""

    @jax.jit
    def run(params):
        sown_kinds = ["losses", "routed", "loads"]
        output, sown = model.apply({"params": params}, **given, mutable=sown_kinds)
        return output.logits, auxiliary_losses(sown)

    return run(params)


def cross_entropy(logits, given):
    labels = router_losses.labels(given)
    if "decoder_input_ids" not in given:
        logits = logits[:, :-1]
        labels = labels[:, 1:]
    kept = labels != router_losses.IGNORED
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, np.where(kept, labels, 0))
    return jnp.where(kept, losses, 0.0).sum() / np.float32(kept.sum())


DAILY = ("mixtral-off", "mixtral-on", "nllb_moe-on")


def every_case():
    """Returns all cases; daily those of one family, and of one whose losses are its own."""
    for stem in router_losses.FAMILIES:
        for case in router_losses.CASES:
            marks = (pytest.mark.nightly,)
            if f"{stem}-{case}" in DAILY:
                marks = ()
            yield pytest.param(stem, case, marks=marks, id=f"{stem}-{case}")


@pytest.mark.parametrize(("stem", "case"), list(every_case()))
def test_the_training_loss_is_that_of_torch(stem, case, tmp_path):
    model, params = model_of(stem, router_losses.CASES[case], tmp_path / "source")
    given = given_to(model)
    logits, routers = routers_of(model, params, given)
    assert bool(routers) == (case == "on" and stem not in WITHOUT)
    loss = float(cross_entropy(logits, given)) + float(sum(routers.values()))
    np.testing.assert_allclose(loss, THEIRS[stem][case], rtol=2e-6)
    save_pretrained(tmp_path / "again", model, params)
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    back = read_config(resolve("models", stem), again, "lm")
    assert find_experts(back) == find_experts(model.cfg)
    if routers:
        assert again["router_aux_loss_coef"] == 0.9
        assert again["output_router_logits"] is True


@pytest.mark.nightly
@pytest.mark.parametrize("stem", ["mixtral", "switch_transformers"])
def test_layers_of_a_scan_have_the_same_losses(stem, tmp_path):
    model, params = model_of(stem, router_losses.CASES["on"], tmp_path / "source", scan=True)
    _, routers = routers_of(model, params, given_to(model))
    due = THEIRS[stem]["on"] - THEIRS[stem]["off"]
    np.testing.assert_allclose(sum(routers.values()), due, rtol=5e-6)


def test_a_loss_of_ours_is_a_field_and_no_part_of_a_published_file(tmp_path):
    """A run with it is exported all the same; transformers has no such loss."""
    model, params = model_of("mixtral", router_losses.CASES["off"], tmp_path / "source")
    given = given_to(model)
    assert not routers_of(model, params, given)[1]
    ours = dataclasses.replace(
        find_experts(model.cfg),
        balance=0.02,
        z_loss=0.1,
        router_bias_update_rate=0.0,
        losses_over="layer",
    )
    cfg = dataclasses.replace(model.cfg, feed_forward=ours)
    _, routers = routers_of(type(model)(cfg), params, given)
    assert set(routers) == {"load_balancing", "router_z"}
    assert 2 <= routers["load_balancing"] / 0.02 < 2 * ours.num_experts  # of two layers
    written = write_config(resolve("models", "mixtral"), cfg)
    assert written["output_router_logits"] is False
    assert "router_aux_loss_coef" not in written
    assert find_experts(read_config(resolve("models", "mixtral"), written, "lm")).balance == 0


def test_only_the_loss_of_a_language_model_has_them():
    config = router_losses.family("mixtral")["config"] | router_losses.CASES["on"]
    family = resolve("models", "mixtral")
    assert find_experts(read_config(family, config, "lm")).balance == 0.9
    assert find_experts(read_config(family, config, "sequence_classification")).balance == 0


def test_a_switch_with_experts_in_every_layer_of_a_stack_has_none_in_transformers():
    config = router_losses.family("switch_transformers")["config"] | {"decoder_sparse_step": 1}
    family = resolve("models", "switch_transformers")
    assert find_experts(read_config(family, config, "lm")).balance == 0
    with pytest.raises(ConfigError, match=r"decoder_sparse_step=1.*set output_router_logits=false"):
        read_config(family, config | router_losses.CASES["on"], "lm")


def test_what_only_training_reads_does_not_tell_two_records_apart():
    """So it cannot keep a model from being written."""
    trained = MoeConfig(balance=0.5, z_loss=0.1, losses_over="row", router_bias_update_rate=0.01)
    assert trained.at_inference == MoeConfig(router_bias_update_rate=0.001).at_inference
    assert trained.at_inference != MoeConfig().at_inference, "a bias is a weight"
