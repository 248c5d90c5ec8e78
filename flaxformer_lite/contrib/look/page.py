"""The page that shows the inside of a model.

It is one HTML file that needs no network; its numbers are packed beside its script.
"""

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Callable, Iterable
from importlib import resources

import numpy as np

from flaxformer_lite.contrib.look.position_tables import PositionTable
from flaxformer_lite.contrib.look.summary import AttentionMaps, ExpertMaps, Inside
from flaxformer_lite.files.read import Json

Spell = Callable[[int], str]


def render(inside: Inside, spell: Spell, *, title: str, facts: dict[str, str]) -> str:
    """Renders the record as HTML.

    Args:
      inside: what `look_inside` found.
      spell: the text of a token.
      title: title of the page.
      facts: what else to tell about the model, by name.
    """
    data = json.dumps(
        page_data(inside, spell) | {"facts": list(facts.items())},
        ensure_ascii=False,
        allow_nan=False,
    )
    template = (
        resources.files("flaxformer_lite.contrib.look")
        .joinpath("page.html")
        .read_text(encoding="utf-8")
    )
    (script,) = re.findall(r"<script>(.*?)</script>", template, re.S)
    # Only this script may run, whatever else a text might smuggle in.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values = {"title": html.escape(title), "digest": digest, "data": data.replace("<", "\\u003c")}
    return re.sub(r"\{\{(title|digest|data)\}\}", lambda match: values[match[1]], template)


def page_data(inside: Inside, spell: Spell) -> Json:
    """Returns what the page's script reads, as JSON."""
    words = {side: _spelled(ids_T, spell) for side, ids_T in inside.sequences.items()}
    return {
        "sequences": words,
        "attentions": list(map(_attention, inside.attentions)),
        "lens": _lens(inside, spell),
        "losses": _losses(inside, spell),
        "norms": [_norms(side, norms_LT, words[side]) for side, norms_LT in inside.norms.items()],
        "experts": [_experts(maps, words[maps.sequence]) for maps in inside.experts],
        "positions": list(map(_positions, inside.positions)),
    }


def _spelled(ids_T: Iterable[int], spell: Spell) -> list[str]:
    return [spell(int(i)) for i in ids_T]


def pack(values: np.ndarray, *, bits: int = 8, power: float = 1.0) -> Json:
    """Rounds numbers to 8, 16 or 32 bits between the least and the most, and compresses them.

    Args:
      power: 2 rounds square roots, so that small numbers keep more digits; the least is then zero.
    """
    low = 0.0 if power != 1 else float(values.min())
    high = float(values.max())
    share = (np.asarray(values, np.float64) - low) / ((high - low) or 1.0)
    codes = np.rint(share ** (1 / power) * (2**bits - 1)).astype(f"<u{bits // 8}")
    data = base64.b64encode(zlib.compress(codes.tobytes(), 9)).decode()
    return {
        "shape": list(values.shape),
        "bits": bits,
        "low": low,
        "high": high,
        "power": power,
        "data": data,
    }


def sharpest(weights_LNTS: np.ndarray) -> list[int]:
    """Returns the layer and head whose rows attend most sharply, each to other places.

    It has the most mutual information of row and column: a head that spreads its weight has little,
    and so has one whose rows all attend to the first token.
    """
    p_LNTS = np.asarray(weights_LNTS, np.float64)
    all_LN = _entropy(p_LNTS.mean(axis=2))
    rows_LN = _entropy(p_LNTS).mean(axis=-1)
    return [int(i) for i in np.unravel_index(np.argmax(all_LN - rows_LN), all_LN.shape)]


def _entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(np.maximum(p, 1e-30))).sum(axis=-1)


def _attention(maps: AttentionMaps) -> Json:
    masks_KTS, kinds_L = np.unique(maps.visible_LTS, axis=0, return_inverse=True)
    return {
        "name": maps.name,
        "rows": maps.rows,
        "columns": maps.columns,
        "layers": list(maps.layers),
        "weights": pack(maps.weights_LNTS, power=2.0),
        "masks": pack(masks_KTS),
        "kinds": kinds_L.reshape(-1).tolist(),
        "first": sharpest(maps.weights_LNTS),
    }


def _lens(inside: Inside, spell: Spell) -> Json | None:
    if inside.lens is None:
        return None
    ids_LTK = np.asarray(inside.lens.ids_LBTK)[:, 0]
    probabilities_LTK = np.asarray(inside.lens.probabilities_LBTK)[:, 0]
    vocabulary, codes_LTK = np.unique(ids_LTK, return_inverse=True)
    places = {int(i): place for place, i in enumerate(vocabulary)}
    return {
        "sequence": list(inside.sequences)[-1],
        "layers": list(inside.lens.layers),
        "words": _spelled(vocabulary, spell),
        "tokens": pack(
            codes_LTK.reshape(ids_LTK.shape), bits=32
        ),  # the script rounds them to numbers of words
        "probabilities": pack(probabilities_LTK, bits=16, power=2.0),
        "goals": [places.get(int(i)) for i in inside.goals_T],
    }


def _losses(inside: Inside, spell: Spell) -> Json | None:
    if inside.losses is None:
        return None
    nats: list[float | None] = []
    for value in inside.losses.nats_T:
        if np.isnan(value):
            nats.append(None)
        else:
            nats.append(round(float(value), 5))
    return {
        "words": _spelled(inside.losses.ids_T, spell),
        "values": nats,
        "given": inside.losses.given,
    }


def _norms(side: str, norms_LT: np.ndarray, words: list[str]) -> Json:
    rows = ["embeddings", *(f"layer {i}" for i in range(len(norms_LT) - 1))]
    return {"name": side, "rows": rows, "columns": words, "values": pack(norms_LT, bits=16)}


def _positions(table: PositionTable) -> Json:
    return {
        "name": table.name,
        "note": table.note,
        "rows": table.rows,
        "columns": table.columns,
        "values": pack(table.values_RC),
    }


def _experts(maps: ExpertMaps, words: list[str]) -> Json:
    rows = [f"expert {expert}" for expert in range(len(maps.weights_XT))]
    name = f"{maps.sequence}, layer {maps.layer}"
    return {"name": name, "rows": rows, "columns": words, "values": pack(maps.weights_XT, bits=16)}
