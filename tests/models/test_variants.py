"""The contract of families that vary another one, over fewer programs."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import registry
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.pretrained import tensor_names
from flaxformer_lite.pretrained.tensor_names import side_by_side
from flaxformer_lite.sharding import parameter_rules
from flaxformer_lite.sharding.mesh import build_mesh
from flaxformer_lite.sharding.parameters import param_specs
from tests.marks import daily
from tests.models.tiny import (
    COMPOSED,
    T,
    built,
    close,
    ids,
    is_encoder_decoder,
    segments_of,
    small,
)

HEADS = [
    (name, head)
    for name in registry.available("models")
    for head in registry.resolve("models", name).Model.heads
]
# All heads of the families that others take theirs from, and one of each that has no numbers of its
# own in tests/pretrained/test_families.py.
WITH_ALL_HEADS = ("bert", "gpt2", "t5")
DAILY_HEADS = [
    *{name: (name, head) for name, head in reversed(HEADS) if name not in COMPOSED}.values(),
    *(case for case in HEADS if case[0] in WITH_ALL_HEADS),
]


def run(model, params, x, **inputs):
    pair = {"input_ids": x} | ({"decoder_input_ids": x} if is_encoder_decoder(model.cfg) else {})
    output = model.apply({"params": params}, **pair, **inputs)
    return np.asarray(output.last_hidden_state if output.logits is None else output.logits)


def test_documents_padding_and_future():
    """Of others tests/contrib/verify/test_families.py, whose programs are miscompiled for this one
    with the flags of tests."""
    cfg = small("recurrent")
    model, params = built(cfg)
    a, b, c = (ids(seed, 1, T // 2) for seed in range(3))
    pair = jnp.concatenate([jnp.concatenate([a, b], axis=1), jnp.concatenate([a, c], axis=1)])
    segments = jnp.asarray([[1] * (T // 2) + [2] * (T // 2)] * 2, jnp.int32)

    packed = run(model, params, pair, **segments_of(cfg, segments))
    assert packed.shape == (2, T, cfg.d_model if cfg.head == "none" else 37)
    assert packed.dtype == np.float32
    np.testing.assert_array_equal(packed[0, : T // 2], packed[1, : T // 2])
    alone = run(model, params, a, **segments_of(cfg, segments[:1, : T // 2]))
    close(packed[:1, : T // 2], alone)
    assert not np.array_equal(packed[0, T // 2 :], packed[1, T // 2 :])

    mask = (segments == 1).astype(jnp.int32)
    padded = run(model, params, pair, attention_mask=mask)
    np.testing.assert_array_equal(padded[0, : T // 2], padded[1, : T // 2])
    if cfg.skeleton == "decoder":
        plain = run(model, params, pair)
        np.testing.assert_array_equal(plain[0, : T // 2], plain[1, : T // 2])
        assert not np.array_equal(plain[0, T // 2 :], plain[1, T // 2 :])


@pytest.mark.parametrize(("family", "head"), daily(HEADS, DAILY_HEADS))
def test_every_head_has_partition_rules_and_published_names(family, head):
    cfg = small(family, number=1, vocab_size=64, head=head)
    plugin = registry.resolve("models", family)
    shapes = parameter_shapes(plugin.Model(cfg))
    # raises where none fits
    param_specs(
        shapes, parameter_rules.rules(cfg), build_mesh(MeshConfig(data=2, fsdp=4, tensor=1))
    )
    # A family may have no published form.
    if hasattr(plugin, "PUBLISHED") and head in plugin.PUBLISHED.heads:
        alone = {path: leaf.shape for path, leaf in side_by_side(cfg, shapes).items()}
        named = tensor_names.layouts(plugin.PUBLISHED, cfg, alone)
        assert named.keys() == alone.keys()


@pytest.mark.parametrize("family", daily(registry.available("models"), ("albert", "gpt2")))
def test_scanned_layers_side_by_side_are_those_of_a_loop(family):
    model = registry.resolve("models", family).Model
    cfg = small(family, vocab_size=64)
    scanned = dataclasses.replace(cfg, scan=True)
    stacked = side_by_side(scanned, parameter_shapes(model(scanned)))
    assert stacked == side_by_side(cfg, parameter_shapes(model(cfg)))
