import pytest

from flaxformer_lite.analysis import parts


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (
            "jit(s)/jvp(Model.features)/decoder/while/body/closed_call/add",
            "rest of the model, forward",
        ),
        ("jit(s)/jvp(Model.features)/layers/block_0/mlp/up/dot_general", "feed-forward, forward"),
        (
            "jit(s)/transpose(jvp(Model.features))/decoder/while/body/checkpoint/rematted_computation/layers/attention/exp",
            "attention, recomputed",
        ),
        (
            "jit(s)/transpose(jvp(Model.features))/layers/attention/attention._keys/key/dot_general",
            "attention projections, backward",
        ),
        ("jit(s)/jvp(...D,VD->...V)/dot_general", "vocabulary and loss"),
        ("jit(s)/sqrt", "optimizer and the rest"),
        ("", "optimizer and the rest"),
    ],
)
def test_a_part_is_named_by_its_modules_and_pass(source, part):
    assert parts.part(source) == part
