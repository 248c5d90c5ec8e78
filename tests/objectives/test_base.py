"""Settings that an objective adopts from the weights it starts from, its own and by default."""

from dataclasses import dataclass
from typing import ClassVar

from flaxformer_lite.objectives.base import Objective
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.objectives.tables.sentence_embeddings import SentenceEmbeddings
from flaxformer_lite.objectives.tables.text_to_text import TextToText
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


def test_an_objective_without_any_of_it_adopts_nothing_and_reads_text():
    plain = Outside()
    assert plain.adopt({"template": "{{ x }}", "labels": ("a",)}) == plain
    assert (plain.class_names, plain.head_hint, plain.sample_prompt) == ((), "", "")
    assert not plain.reads_tables
    assert Outside.of_published({"head": "lm"}, ()) == plain


def test_empty_fields_are_adopted_and_a_run_gives_back_what_it_adopted():
    begun = Adopting().adopt({"template": "{{ x }}", "pooling": "mean"})
    assert begun == Adopting(template="{{ x }}")
    kept = {name: getattr(begun, name) for name in begun.adopts}
    assert Adopting().adopt(kept) == begun
    assert Adopting(template="{{ y }}").adopt(kept).template == "{{ y }}"
    assert Classification().adopt({"labels": ("a", "b")}).class_names == ("a", "b")
    assert SentenceEmbeddings().adopt({"pooling": "first"}).pooling == "first"
    assert SentenceEmbeddings().adopt({"pooling": ""}) == SentenceEmbeddings()


def test_the_objective_of_a_published_head():
    assert MaskedLm.of_published({"head": "pretraining"}, ()).pairs == "next_sentence"
    assert MaskedLm.of_published({"head": "masked_lm"}, ()).pairs == "none"
    assert "pairs=none" in MaskedLm(pairs="sentence_order").head_hint
    assert TextToText(prefix="sum: ").sample_prompt == "sum: A kitten naps."
