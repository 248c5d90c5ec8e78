"""Each head that has an objective has one that exists and trains it."""

import pytest

from flaxformer_lite import registry
from flaxformer_lite.config import required_head
from flaxformer_lite.runs.evaluate_file import OBJECTIVES, of_head


@pytest.mark.parametrize("head", OBJECTIVES)
def test_the_objective_trains_the_head(head):
    cls = registry.resolve_class("objectives", of_head(head, "encoder"))
    made = cls.of_published({"head": head}, ("a", "b"))
    skeleton = "encoder_decoder" if head == "encoder" else "encoder"
    assert required_head(made, skeleton) == head


def test_a_language_model_by_its_skeleton():
    assert of_head("lm", "decoder") == "causal_lm"
    assert of_head("lm", "encoder_decoder") == "text_to_text"
    assert of_head("lm", "embedding") == of_head("reward", "decoder") == ""
