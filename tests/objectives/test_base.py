"""Settings that an objective adopts from the weights it starts from, its own and by default."""

from dataclasses import dataclass
from typing import ClassVar

from flaxformer_lite.objectives.base import Objective, WritesText
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.objectives.tables.sentence_embeddings import SentenceEmbeddings
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.objectives.text.masked_lm import MaskedLm


@dataclass(frozen=True, kw_only=True)
class Outside(Objective):
    """Has a field with the name of a fact, which it does not ask for."""

    template: str = ""

    def make_example(self, records, index, rng):
        return {}

    def loss(self, outputs, targets, *, chunks):
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Adopting(Outside):
    adopts: ClassVar[tuple[str, ...]] = ("template",)


def hooks(base):
    """Returns what a subclass may define: public methods, properties and annotated attributes."""
    return {name for name in vars(base).keys() | base.__annotations__ if name[0] != "_"}


def test_an_objective_has_few_hooks():
    assert len(hooks(Objective)) <= 28
    assert len(hooks(Task) - hooks(Objective)) <= 12


def test_an_objective_without_any_of_it_adopts_nothing_and_reads_text():
    plain = Outside()
    assert plain.adopt({"template": "{{ x }}", "labels": ("a",)}) == plain
    assert not isinstance(plain, WritesText) and plain.published_fields() == {}
    assert Outside.of_published({"head": "lm"}, ()) == plain


def test_empty_fields_are_adopted_and_a_run_gives_back_what_it_adopted():
    begun = Adopting().adopt({"template": "{{ x }}", "pooling": "mean"})
    assert begun == Adopting(template="{{ x }}")
    kept = {name: getattr(begun, name) for name in begun.adopts}
    assert Adopting().adopt(kept) == begun
    assert Adopting(template="{{ y }}").adopt(kept).template == "{{ y }}"
    assert Classification().adopt({"labels": ("a", "b")}).labels == ("a", "b")
    assert SentenceEmbeddings().adopt({"pooling": "first"}).pooling == "first"
    assert SentenceEmbeddings().adopt({"pooling": ""}) == SentenceEmbeddings()


def test_the_objective_of_a_published_head():
    assert MaskedLm.of_published({"head": "pretraining"}, ()).pairs == "next_sentence"
    assert MaskedLm.of_published({"head": "masked_lm"}, ()).pairs == "none"
