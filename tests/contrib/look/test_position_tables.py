"""Pictures of position encodings beside their equations."""

import numpy as np
import pytest

from flaxformer_lite.contrib.look.position_tables import position_tables
from flaxformer_lite.nn.positions.alibi import Alibi, slopes
from flaxformer_lite.nn.positions.rope import Rope
from flaxformer_lite.nn.positions.shaw import Shaw
from flaxformer_lite.nn.positions.sinusoidal import Sinusoidal
from flaxformer_lite.nn.positions.t5_buckets import T5Buckets
from tests.models.tiny import built, close, small


def tables(family, **overrides):
    model, params = built(small(family, **overrides))
    return params, position_tables(model, params, 12)


def test_alibi_falls_with_distance():
    _, (table,) = tables("gpt2", position=Alibi())
    close(table.values_RC, -slopes(4)[:, None] * np.arange(15, -1, -1))
    assert table.columns[0] == "-15" and table.columns[-1] == "0" and table.rows[3] == "head 3"


@pytest.mark.parametrize("per_layer", [False, True])
def test_buckets_are_the_learned_logits(per_layer):
    params, found = tables("t5", position=T5Buckets(num_buckets=32, per_layer=per_layer))
    assert [table.name.partition(":")[0] for table in found] == ["encoder", "decoder"]
    owner = params["encoder"]["layer_0"]["attention"] if per_layer else params["encoder"]
    learned_RN = np.asarray(owner["position"]["relative"])
    both = found[0].values_RC
    close(both[:, 15], learned_RN[0])  # the token itself
    close(both[:, 12], learned_RN[3])  # three before it
    close(both[:, 17], learned_RN[16 + 2])  # two after it
    assert found[1].columns[-1] == "0" and found[1].name.endswith("layer 0") == per_layer


def test_what_turns():
    _, (table,) = tables("llama", position=Rope(base=100.0))
    close(table.values_RC, np.cos(np.arange(16)[:, None] * 100.0 ** (-np.arange(2) / 2)))


def test_what_is_added():
    _, (table,) = tables("gpt2", position=Sinusoidal())
    close(table.values_RC[:, 0], np.sin(np.arange(16)))
    params, (table,) = tables("bert")
    rows = np.asarray(params["embed"]["position"]["position"])
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    close(table.values_RC[2, 5], unit[2] @ unit[5])
    assert table.values_RC.shape == (16, 16), "as many as the table has"


def test_what_depends_on_the_text_has_no_table():
    assert not tables("gpt2", position=Shaw())[1]
