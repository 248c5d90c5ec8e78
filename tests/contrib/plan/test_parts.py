import re

import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite import build_model
from flaxformer_lite.contrib.plan import parts

FORWARD = "jit(s)/jvp(Model.features)"
BACKWARD = "jit(s)/transpose(jvp(Model.features))"
AGAIN = "checkpoint/rematted_computation"
PROJECTIONS = "attention projections, backward"


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (f"{FORWARD}/decoder/while/body/closed_call/add", "rest of the model, forward"),
        (f"{FORWARD}/layers/block_0/mlp/up/dot_general", "feed-forward, forward"),
        (f"{BACKWARD}/decoder/while/body/{AGAIN}/layers/attention/exp", "attention, recomputed"),
        (f"{BACKWARD}/layers/attention/attention.project/key/dot_general", PROJECTIONS),
        ("jit(s)/jvp(...D,VD->...V)/dot_general", "vocabulary and loss"),
        ("jit(s)/sqrt", "optimizer and the rest"),
        ("", "optimizer and the rest"),
    ],
)
def test_a_part_is_named_by_its_modules_and_pass(source, part):
    assert parts.part(source) == part


def test_the_modules_of_a_model_are_parts():
    model = build_model("bert", "tiny", head="masked_lm", vocab_size=64, encoder_layers=1)
    ids = jnp.zeros((2, 8), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), ids)["params"]
    lowered = jax.jit(lambda p: model.apply({"params": p}, ids).logits).lower(params)
    names = re.findall(r'op_name="([^"]*)"', lowered.compile().as_text())
    due = {
        r"/(query|key|value|out)/": "attention projections",
        r"attention_out_norm|embed/norm": "norms",
        r"/mlp/": "feed-forward",
    }
    for pattern, part in due.items():
        found = {parts.part(name) for name in names if re.search(pattern, name)}
        assert found and all(name.startswith(part) for name in found), (pattern, found)
