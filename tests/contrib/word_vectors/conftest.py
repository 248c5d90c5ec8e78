"""Records of a small text, as all objectives see them."""

from tests.objectives.conftest import create, generator, records_of, small_text

__all__ = ["create", "generator", "records_of", "small_text"]
