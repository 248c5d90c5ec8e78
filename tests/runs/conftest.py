"""Fixtures of the tests of data, which the tests of provenance use too."""

from tests.data.conftest import documents, experiment, jsonl  # noqa: F401, fixtures
