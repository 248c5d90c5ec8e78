"""Every field of a config is set somewhere, or the documentation says when to set it."""

import re
from pathlib import Path

import pytest

from flaxformer_lite import pages, registry
from flaxformer_lite.config import (
    ConfigError,
    DataConfig,
    ExperimentConfig,
    LayerKind,
    ModelConfig,
    OptimizerConfig,
    from_config_dict,
)
from flaxformer_lite.config.experiment import MeshConfig, TokenizerConfig, TrainConfig
from flaxformer_lite.config.mixture import SourceConfig
from flaxformer_lite.config.parsing import RENAMED, choose_plugins
from flaxformer_lite.config.rules import declared_fields
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.nn.mixers.convolution import ConvolutionConfig

ROOT = Path(__file__).parents[2]
RECORDS = (
    DataConfig,
    ExperimentConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    SourceConfig,
    TokenizerConfig,
    TrainConfig,
)
FOLDERS = ("positions", "mixers", "feed_forwards", "adapters", "objectives")


def find_words(form, *patterns):
    """Returns the words of this form in all files that match."""
    words = set()
    for pattern in patterns:
        for file in ROOT.glob(pattern):
            words.update(re.findall(form, file.read_text()))
    return words


def test_every_field_is_set_by_a_page_or_a_family_or_has_its_use_in_the_docs():
    records = list(RECORDS)
    for folder in FOLDERS:
        records += [registry.resolve_class(folder, name) for name in registry.available(folder)]
    assert len(records) > 50
    setters = find_words(
        r"\w+",
        "configs/*.py",
        "flaxformer_lite/models/**/*.py",
        "flaxformer_lite/contrib/*/models/*.py",
    )
    documented = find_words(r"[`.](\w+)", "docs/*.md")
    unused = []
    for record in records:
        for name in declared_fields(record):
            if name not in setters | documented:
                unused.append(f"{record.__name__}.{name}")
    assert not unused, "document when to set it in docs/config.md, or delete it"


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_the_old_name_of_a_field_is_read(old, new):
    record, value = {
        "router_bias_update_rate": (MoeConfig, 0.5),
        "extra_branch": (LayerKind, ConvolutionConfig(width=5)),
    }[new]
    assert from_config_dict(record, {old: value}) == record(**{new: value})
    with pytest.raises(ConfigError, match=f"{old}: no such field"):
        from_config_dict(record, {old: value, new: value})


def test_a_page_with_an_old_name_is_read_by_the_command_line():
    page = pages.get_config("moe_tiny")
    moe = page.model.feed_forward
    with page.unlocked():
        moe.bias_rate = 0.01
        del moe["router_bias_update_rate"]
    choose_plugins(page, {})
    cfg = from_config_dict(ExperimentConfig, page)
    assert cfg.model.feed_forward.router_bias_update_rate == 0.01
