"""The command prints a table, exits with 1 on a fault, and refuses bad input in one sentence."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import __main__ as door
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.verify.checks import verify
from flaxformer_lite.models import build_model
from flaxformer_lite.nn.functions import masks
from tests.models.tiny import built, small
from tests.pretrained.fixtures import ROOT

BERT = f"--model={ROOT / 'bert_base'}"


def run(*argv):
    """Returns the exit code of a command."""
    try:
        door.main(["verify", *argv])
    except SystemExit as ended:
        return ended.code
    return 0


def test_a_folder_is_verified_in_one_table(capsys, monkeypatch):
    folder = f"--model={ROOT / 'gpt2_lm'}"
    assert run(folder, "--checks=causal,padding") == 0
    said = capsys.readouterr().out
    assert said.startswith("property") and "batch-mate" in said and "padding on the left" in said
    assert "5 properties hold, 0 faults, 0 as published, 0 not checked" in said
    monkeypatch.setattr(masks, "causal", lambda: masks.Window(None, 1))
    assert run(folder, "--checks", "causal") == 1
    assert "causal: outputs" in (said := capsys.readouterr().out) and "FAULT" in said


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([BERT, "--checks=paddings"], "'paddings': no such check; did you mean 'padding'?"),
        ([BERT, "--checks=mesh"], "--checks=mesh: needs the sizes of a mesh; pass --config"),
        ([BERT, "--reference=/nowhere"], "/nowhere/inputs.npz: cannot be read as numpy's .npz"),
        ([BERT, "--config=gpt2_tiny"], "--model, --config: pass one of them"),
        ([BERT, "--config.train.steps=3"], "--config.train.steps: no such flag"),
        ([], "--model or --config is missing"),
    ],
)
def test_bad_input_is_one_sentence(argv, message, refusal):
    assert message in refusal("verify", *argv)


def test_a_reference_of_another_model_is_refused(tmp_path):
    model, params = built(small("bert", 1))
    np.savez(tmp_path / "inputs.npz", input_ids=np.ones((1, 4), np.int32))
    for outputs, message in (
        ({"logits": np.ones((1, 4, 9))}, r"logits has shape \(1, 4, 9\), and the model's"),
        ({"scores": np.ones(3)}, "holds 'scores', which the model has not"),
    ):
        np.savez(tmp_path / "outputs.npz", **outputs)
        with pytest.raises(ConfigError, match=message):
            verify(model, params, reference=tmp_path)


def test_what_has_nothing_to_check_is_refused():
    words = build_model("word2vec", "tiny", vocab_size=20)
    with pytest.raises(ConfigError, match="word2vec has no layers"):
        verify(words, {})
    with pytest.raises(ConfigError, match=r"Dense: cannot be applied to ids .*must|maps ids"):
        verify(nn.Dense(3), {})
    bag = nn.Sequential([nn.Embed(9, 9), lambda x: x + x.mean(axis=1, keepdims=True)])
    params = {"layers_0": {"embedding": jnp.eye(9)}}
    (found,) = verify(bag, params, checks=["causal"])
    assert found.verdict == "not checked" and "pass causal=True" in found.why
