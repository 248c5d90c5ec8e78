"""Newer libraries are not held back, and once a process named."""

import importlib.metadata
import logging

import pytest

from flaxformer_lite import versions


@pytest.fixture
def installed(monkeypatch):
    found = {"jax": "0.12.3", "flax": "0.12.99"}
    monkeypatch.setattr(importlib.metadata, "version", found.__getitem__)
    versions.notice_untested.cache_clear()
    yield found
    versions.notice_untested.cache_clear()


def test_tested_versions_are_passed_in_silence(installed, caplog):
    with caplog.at_level(logging.WARNING):
        versions.notice_untested()
    assert not caplog.records


@pytest.mark.parametrize("version", ["0.13.0", "1.0", "0.13.0.dev20270101"])
def test_a_newer_one_is_named_once_with_the_way_back(version, installed, caplog):
    installed["jax"] = version
    with caplog.at_level(logging.WARNING):
        versions.notice_untested()
        versions.notice_untested()
    (record,) = caplog.records
    assert (
        record.getMessage().startswith(f"jax {version} is newer than 0.12")
        and "'jax<0.13'" in record.getMessage()
    )
