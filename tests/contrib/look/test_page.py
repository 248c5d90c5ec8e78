"""The page as a browser gets it: its numbers, and that no text in it can run. tools/browser opens
it in a real one."""

import base64
import hashlib
import json
import re
import zlib

import numpy as np
import pytest

from flaxformer_lite.contrib.look.page import pack, page_data, render, sharpest
from flaxformer_lite.contrib.look.summary import look_inside
from tests.models.tiny import built, small

ATTACK = "</script><img src=x onerror=alert(1)>"


def unpack(packed):
    stored = zlib.decompress(base64.b64decode(packed["data"]))
    codes = np.frombuffer(stored, f"<u{packed['bits'] // 8}")
    share = (codes.astype(np.float64) / (2 ** packed["bits"] - 1)) ** packed["power"]
    return (packed["low"] + (packed["high"] - packed["low"]) * share).reshape(packed["shape"])


@pytest.fixture(scope="module")
def inside():
    return look_inside(*built(small("t5")), [5, 7, 11, 13], [3, 9, 1])


@pytest.mark.parametrize(
    ("options", "error"), [({}, 1 / 510), ({"power": 2.0}, 1 / 255), ({"bits": 16}, 1 / 131070)]
)
def test_numbers_are_rounded_by_at_most_half_a_step(options, error):
    values = np.random.default_rng(0).random((3, 5, 7)).astype(np.float32)
    assert np.abs(unpack(pack(values, **options)) - values).max() <= error * values.max()
    numbers = np.arange(99_999)
    np.testing.assert_array_equal(np.rint(unpack(pack(numbers, bits=32))), numbers)
    same = np.full((2, 2), -3.5, np.float32)
    np.testing.assert_array_equal(unpack(pack(same)), same)
    weights = np.asarray([1.0, 1 / 64, 1 / 512])  # small ones keep their digits
    np.testing.assert_allclose(unpack(pack(weights, power=2.0)), weights, rtol=0.05)


@pytest.mark.nightly
def test_what_the_script_reads(inside):
    data = json.loads(json.dumps(page_data(inside, lambda i: f"<{i}>"), allow_nan=False))
    assert data["sequences"]["encoder"] == ["<5>", "<7>", "<11>", "<13>"]
    assert data["sequences"]["decoder"] == ["<0>", "<3>", "<9>"]
    for shown, maps in zip(data["attentions"], inside.attentions, strict=True):
        assert np.abs(unpack(shown["weights"]) - maps.weights_LNTS).max() <= 1 / 255
        masks = unpack(shown["masks"])
        np.testing.assert_array_equal(masks[shown["kinds"]] > 0.5, maps.visible_LTS)
    codes = np.rint(unpack(data["lens"]["tokens"])).astype(int)
    spelled = [[[data["lens"]["words"][k] for k in ks] for ks in row] for row in codes]
    ids = inside.lens.ids_LBTK[:, 0].tolist()
    assert spelled == [[[f"<{i}>" for i in ks] for ks in row] for row in ids]
    np.testing.assert_allclose(data["losses"]["values"], inside.losses.nats_T, atol=1e-5)
    assert np.abs(unpack(data["norms"][1]["values"]) - inside.norms["decoder"]).max() < 1e-3


def test_the_page_opens_on_the_head_that_tells_most(inside):
    """One head spreads its weight, one attends to the first token, and one to the token before."""
    spread = np.full((6, 6), 1 / 6)
    sink = np.eye(6)[np.zeros(6, int)]
    before = np.eye(6)[np.maximum(np.arange(6) - 1, 0)]
    for layer, head in ((0, 2), (1, 0)):
        weights = np.stack([[spread, sink, spread], [spread, sink, spread]])
        weights[layer, head] = 0.9 * before + 0.1 * spread
        assert sharpest(weights) == [layer, head]
    shown = page_data(inside, str)["attentions"]
    assert [one["first"] for one in shown] == [sharpest(a.weights_LNTS) for a in inside.attentions]


def test_texts_cannot_run(inside):
    page = render(inside, lambda i: ATTACK, title=ATTACK, facts={"family": ATTACK})
    assert page.count("</script>") == 2 and "<img" not in page
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    (held,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert json.loads(held)["sequences"]["decoder"][0] == ATTACK
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page


def test_placeholders_in_texts_stay_as_they_are_and_the_page_asks_for_nothing(inside):
    page = render(inside, lambda i: "{{title}}", title="{{data}}", facts={})
    assert "<title>{{data}}</title>" in page and '"{{title}}"' in page
    assert not re.search(r"https?:|<link|@import|url\(|innerHTML|document\.write|eval\(", page)
