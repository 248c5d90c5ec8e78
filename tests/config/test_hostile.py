"""Every field of every record takes a hostile value with a ConfigError, or as one that it can work
with."""

import dataclasses
import math
import re

import numpy as np
import pytest

from flaxformer_lite import pages, registry
from flaxformer_lite.config import (
    ConfigError,
    ExperimentConfig,
    fingerprint,
    from_config_dict,
    required_head,
    rules,
    to_config_dict,
)

VALUES = (
    -7,
    -1,
    0,
    1,
    2**31,
    -(2**31),
    2**63,
    10**12,
    10**400,
    10**5000,
    True,
    None,
    np.int64(3),
    np.float32("nan"),
    -1.0,
    0.5,
    1.5,
    1e-320,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "rope",
    "x" * 5000,
    "a\0b",
    "\ud800",
    "\x1b[31m",
    b"x",
    (),
    (0,),
    ("in", "in"),
    (None,),
    ["in"],
    [[1], "x"],
    {},
    {"name": 3},
    {"name": "rope"},
    {"x": 1},
    object(),
    int,
    range(3),
    1j,
)
PLUGINS = {
    "positions": "model.position",
    "mixers": "model.mixer",
    "feed_forwards": "model.feed_forward",
    "objectives": "objective",
}
PAGES = {
    "decoder": "gpt2_tiny",
    "encoder": "bert_tiny",
    "encoder_decoder": "t5_tiny",
    "embedding": "word2vec",
}


def page(name):
    return to_config_dict(from_config_dict(ExperimentConfig, pages.get_config(name))).to_dict()


def with_plugin(folder, name):
    """A page with this plug-in, its options at their defaults."""
    cls = registry.resolve_class(folder, name)
    skeletons = cls().skeletons if folder == "objectives" else ("decoder",)
    values = page(PAGES[skeletons[0]])
    *above, last = PLUGINS[folder].split(".")
    if node(values, above)[last]["name"] != name:
        node(values, above)[last] = {"name": name}
        if folder == "objectives":
            objective = registry.resolve_class(folder, name)()
            values["model"]["head"] = required_head(objective, skeletons[0])
    cfg = from_config_dict(ExperimentConfig, values)
    return to_config_dict(cfg).to_dict()


def node(values, path):
    for name in path:
        values = values[name]
    return values


def paths(values, above=()):
    """Sections and fields."""
    for name, value in values.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from paths(value, (*above, name))


def numbers(value):
    """All numbers in a record and the records inside it."""
    if dataclasses.is_dataclass(value):
        for name in rules.declared_fields(type(value)):
            yield from numbers(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, int | float):
        yield value


def clear(error):
    said = str(error)
    return said.isprintable() and said.endswith(".") and 10 < len(said) < 2000


# At every change a field gets every sixth value, the next field those behind; nightly all of them.
SHARES = pytest.mark.parametrize(
    "share", [6, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"]
)


def failures(values, fields, share):
    """The values of each field that end in neither way."""
    return [
        case
        for number, path in enumerate(fields)
        for case in tried(values, path, VALUES[number % share :: share])
    ]


def tried(values, path, hostile):
    """Each value in this place of a page: the ones that end in neither way."""
    for value in hostile:
        *above, last = path
        parent = node(values, above)
        before = parent[last]
        parent[last] = value
        try:
            cfg = from_config_dict(ExperimentConfig, values)
            assert all(math.isfinite(n) and abs(n) <= rules.MAX_FLOAT32 for n in numbers(cfg)), (
                "a number that is none"
            )
            assert from_config_dict(ExperimentConfig, to_config_dict(cfg)) == cfg and fingerprint(
                cfg
            )
        except ConfigError as error:
            if not clear(error):
                yield (
                    ".".join(path),
                    rules.format_value(value)[:20],
                    f"unclear: {str(error)[:200]!r}",
                )
        except Exception as error:
            yield ".".join(path), rules.format_value(value)[:20], repr(error)[:200]
        finally:
            parent[last] = before


@SHARES
@pytest.mark.parametrize(
    "name",
    [
        "t5_tiny",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("gpt2_tiny", "bert_tiny", "llama_tiny")
        ),
    ],
)
def test_every_field_and_section_of_a_page(name, share):
    values = page(name)
    found = failures(values, list(paths(values)), share)
    assert not found, f"{len(found)}: {found[:20]}"


@SHARES
@pytest.mark.parametrize(
    ("folder", "name"), [(f, n) for f in PLUGINS for n in registry.available(f) if n != "attention"]
)
def test_every_field_of_a_plugin(folder, name, share):
    values = with_plugin(folder, name)
    fields = [path for path in paths(values) if ".".join(path).startswith(f"{PLUGINS[folder]}.")]
    found = failures(values, fields, share)
    assert not found, f"{len(found)}: {found[:20]}"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "model.position",
            "rope",
            (
                "config.model.position='rope': must be a section with a name, not str; set"
                " config.model."
            ),
        ),
        ("model.d_model", 2**31, "model.d_model=2147483648: must be positive, and below 2**31."),
        (
            "model.decoder_layers",
            10**12,
            "model.decoder_layers=1000000000000: must not be negative, and be at most 4096.",
        ),
        (
            "model.mlp_dim",
            2**30,
            "model.d_model=128, model.mlp_dim=1073741824: their product exceeds",
        ),
        (
            "train.batch_size",
            2**30,
            "train.batch_size=1073741824, data.length=128: their product exceeds",
        ),
        ("optimizer.b1", 1.5, "optimizer.b1=1.5: must be a probability in [0, 1)."),
        ("optimizer.learning_rate", math.nan, "optimizer.learning_rate=nan: must be positive"),
        (
            "optimizer.clip_norm",
            math.inf,
            "optimizer.clip_norm=inf: must not be negative, and be finite.",
        ),
        ("model.init_stddev", -1.0, "model.init_stddev=-1.0: must not be negative"),
        ("model.num_labels", -1, "model.num_labels=-1: must be positive"),
        ("model.norm_at", ("in", "in"), "model.norm_at=('in', 'in'): must name each once."),
        ("data.cache", "", "data.cache='': must not be empty."),
        ("train.sample_tokens", -1, "train.sample_tokens=-1: must be between 0 and 65536."),
        ("seed", 2**32, "seed=4294967296: must not be negative, and be below 2**32."),
    ],
)
def test_what_is_said(field, value, message):
    values = page("gpt2_tiny")
    *above, last = field.split(".")
    node(values, above)[last] = value
    with pytest.raises(ConfigError, match=re.escape(message)):
        from_config_dict(ExperimentConfig, values)


@dataclasses.dataclass(frozen=True)
class Own(rules.Record):
    """Annotations that a plug-in may use."""

    order: tuple[str, ...] = ("mamba", "mamba", "attention")
    where: int | str = "auto"
    pair: tuple[str, float] = ("a", 1.0)
    most: int | str | None = None


def test_annotations_of_plugins_that_declare_no_rule():
    Own(where=3, most="all")
    for wrong in ({"order": ("a", 1)}, {"order": "a"}):
        with pytest.raises(ConfigError, match="order"):
            Own(**wrong)
