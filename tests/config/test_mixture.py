"""A mixture in a config: sources by name, from a page or the command line, and what is refused."""

import re

import pytest

from flaxformer_lite.cli import command_line
from flaxformer_lite.config import (
    ConfigError,
    DataConfig,
    ExperimentConfig,
    from_config_dict,
    to_config_dict,
)
from flaxformer_lite.config.mixture import Change, SourceConfig, read_changes

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
TWO = {"web": SourceConfig(path="web/", weight=0.7), "code": SourceConfig(corpus="stdlib_code")}


def parsed(*flags):
    values = command_line.config(
        ["--config=gpt2_tiny", *(f"--config.data.{flag}" for flag in flags)]
    )
    return from_config_dict(ExperimentConfig, values)


def test_there_and_back():
    data = DataConfig(mixture=TWO, mixture_temperature=2.0)
    again = from_config_dict(DataConfig, to_config_dict(data))
    assert again == data and hash(again) == hash(data)
    assert list(data.mixture) == ["code", "web"], "the order of names, whatever that of the page"


def test_sources_from_the_command_line_alone():
    flags = (
        "mixture.web.path=web/",
        "mixture.web.weight=3",
        "mixture.code.corpus=stdlib_code",
        "mixture_schedule=9: web=1",
    )
    data = parsed(*flags).data
    assert data.mixture == {
        "code": SourceConfig(corpus="stdlib_code"),
        "web": SourceConfig(path="web/", weight=3.0),
    }


@pytest.mark.parametrize(
    "flags, message",
    [
        (
            ["mixture.web.path=web/", "mixture.web.wieght=1"],
            r"data\.mixture\.web\.wieght: no such field.*mixture\.web\.weight",
        ),
        (
            ["mixture.web.path=web/", "mixture.wbe.weight=1"],
            r"data\.mixture\.wbe\.path='': give the source a path",
        ),
        (
            ["mixture.web.path=web/", "mixture_shedule=9: web=1"],
            r"mixture_shedule: no such field; .*mixture_schedule",
        ),
        (
            ["mixture.items.path=web/"],
            r"data\.mixture\.items: no name for a source, as configs use it; choose another",
        ),
        (
            ["mixture=web/"],
            r"data\.mixture: is a section of fields; .*data\.mixture\.NAME\.path=VALUE",
        ),
    ],
)
def test_typos_on_the_command_line(capsys, flags, message):
    with pytest.raises((SystemExit, ConfigError)) as error:
        parsed(*flags)
    assert re.search(message, capsys.readouterr().err + str(error.value))


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"path": "x"},
            r"path='x':.*text.*data\.mixture names others;.*empty.*them",
        ),
        ({"mixture": {"a b": TWO["web"]}}, r"mixture='a b':.*letters.*_ only"),
        (
            {"mixture": {f"s{n}": TWO["web"] for n in range(257)}},
            "mixture=257: has more than 256 sources",
        ),
        ({"mixture": {"web": SourceConfig(path="x", weight=0)}}, "no source has a weight"),
        (
            {"mixture": {}, "mixture_temperature": 1.0},
            r"mixture_temperature=1\.0:.*sources.*data\.mixture",
        ),
        (
            {"mixture": {"web": "web/"}},
            r"section.*SourceConfig",
        ),
        ({"mixture": None}, "must be a section with a record"),
        (
            {"mixture_schedule": "9: wbe=1"},
            r"no source 'wbe'; did you mean 'web'.;.*the mixture",
        ),
        ({"mixture_schedule": "nine: web=1"}, "must be like 9000: books=3"),
        ({"mixture_schedule": "9: web=1; 8: web=2"}, "must follow the change before it"),
        ({"mixture_schedule": "9-8: web=1"}, "end after it begins"),
        ({"mixture_schedule": "9: web=1, web=2"}, "name a source once"),
        ({"mixture_schedule": "9: web=-1"}, "has a negative or non-numeric weight"),
        ({"mixture_schedule": "9: web=nan"}, "has a negative or non-numeric weight"),
    ],
)
def test_what_cannot_be(fields, message):
    with pytest.raises(ConfigError, match=message):
        DataConfig(**{"mixture": TWO, **fields})


def test_a_source_has_a_path_or_a_corpus():
    for both in ({}, {"path": "x", "corpus": "stdlib_code"}):
        with pytest.raises(ConfigError, match=r"path, or a built-in.*not both"):
            SourceConfig(**both)


def test_changes_of_weights():
    assert read_changes("9: web=1, code=2.5; 10-20: web=0") == [
        Change(9, 9, {"web": 1.0, "code": 2.5}),
        Change(10, 20, {"web": 0.0}),
    ]
    assert read_changes("") == []
