import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import split
from flaxformer_lite.data.split import hash_of, split_of, split_rows


def deal(documents, fraction):
    dealt = list(split_of(documents, fraction, "here").deal(documents))
    return [d for name, d in dealt if name == "train"], [d for name, d in dealt if name == "eval"]


def test_many_documents_are_held_out_by_hash():
    documents = [(f"text {n}",) for n in range(2000)]
    train, held_out = deal(documents, 0.05)
    assert sorted(train + held_out) == sorted(documents)
    assert 60 < len(held_out) < 140
    assert deal(documents[::-1], 0.05)[1] == held_out[::-1], "whatever the order"
    more = [(f"more {n}",) for n in range(500)]
    assert set(held_out) <= set(deal(documents + more, 0.05)[1]), "more text moves none"


def test_of_very_many_documents_only_some_sizes_are_remembered(monkeypatch):
    documents = [(f"text {n}",) for n in range(2000)]
    exact = split_of(documents, 0.05, "here")
    monkeypatch.setattr(split, "MANY", 500)
    assert split_of(documents, 0.05, "here") == exact
    one_is_most = [*documents, ("a long line of the one big text\n" * 20_000,)]
    assert 0.01 < share(deal(one_is_most, 0.02)[1], one_is_most) < 0.04
    pairs = [(f"source {n}", f"target {n}") for n in range(2000)]
    assert 0.01 < share(deal(pairs, 0.02)[1], pairs) < 0.04


def test_copies_stay_on_one_side():
    documents = [(f"text {n % 100}",) for n in range(1000)]
    train, held_out = deal(documents, 0.1)
    assert held_out and not set(train) & set(held_out)


@pytest.mark.parametrize("seed", range(20))
def test_each_side_gets_a_document(seed):
    train, held_out = deal([(f"{seed} {n}",) for n in range(10)], 0.1)
    assert train and held_out


def test_the_tail_of_one_big_text_is_held_out_at_the_end_of_a_line():
    text = "".join(f"line {n}\n" for n in range(1000))
    ((head,),), ((tail,),) = deal([(text,)], 0.1)
    assert head + tail == text
    assert head.endswith("\n")
    assert 0.05 < len(tail) / len(text) <= 0.1


def test_a_text_without_lines_is_cut_anyway():
    ((head,),), ((tail,),) = deal([("x" * 1000,)], 0.02)
    assert (len(head), len(tail)) == (980, 20)


def test_of_few_documents_each_gives_its_tail():
    documents = [(f"{n}" * 500,) for n in range(5)]
    train, held_out = deal(documents, 0.02)
    assert [a + b for (a,), (b,) in zip(train, held_out, strict=True)] == [d for (d,) in documents]


def share(held_out, documents):
    held, whole = (sum(len(text) for d in part for text in d) for part in (held_out, documents))
    return held / whole


@pytest.mark.parametrize("seed", range(5))
def test_of_some_documents_the_share_of_the_text_is_held_out(seed):
    """58 documents of 2%: their hashes would choose one, of any length."""
    documents = [(f"{seed} {n} of {n * 7}\n" * (20 + 37 * n),) for n in range(58)]
    train, held_out = deal(documents, 0.02)
    assert 0.01 < share(held_out, documents) < 0.04
    assert sum(len(d) for (d,) in train + held_out) == sum(len(d) for (d,) in documents)
    more = [(f"{seed} more {n}\n" * 50,) for n in range(10)]
    assert set(held_out) <= set(deal(documents + more, 0.02)[1]), "more text moves none"


def test_one_document_among_many_that_holds_most_of_the_text():
    documents = [(f"text {n}\n" * 5,) for n in range(200)]
    documents += [("a long line of the one big text\n" * 20_000,)]
    assert 0.01 < share(deal(documents, 0.02)[1], documents) < 0.04


def test_pairs_of_which_one_is_long():
    pairs = [(f"source {n}", f"target {n} " * (500 if n == 7 else 1)) for n in range(100)]
    train, held_out = deal(pairs, 0.1)
    assert set(train + held_out) == set(pairs) and train and held_out
    assert 0 < share(held_out, pairs) < 0.2


def test_pairs_are_never_cut():
    pairs = [(f"source {n}", f"target {n}") for n in range(3)]
    train, held_out = deal(pairs, 0.02)
    assert len(held_out) == 1 and len(train) == 2 and set(train + held_out) == set(pairs)


@pytest.mark.parametrize(
    "documents, fraction, message",
    [
        ([], 0.02, "contains no text, only whitespace"),
        ([], 0, "contains no text, only whitespace"),
        ([], 1, "contains no text, only whitespace"),
        ([("short",)], 0.02, r".*little.*2% of it"),
        ([("a", "b")] * 9, 0.02, "all documents are the same"),
    ],
)
def test_too_little(documents, fraction, message):
    with pytest.raises(ConfigError, match=f"here: {message}"):
        split_of(documents, fraction, "here")


@pytest.mark.parametrize("count", [2, 9, 4000])
def test_rows_of_a_table_are_held_out_by_hash_as_near_to_the_share_as_they_can_be(count):
    """Copies are on the same side, and a long row counts as one."""
    rows = [f"row {number // 2}" for number in range(2 * count)] + ["long " * 10_000]
    hash_N = np.array([hash_of((row,)) for row in rows], np.uint64)
    below = split_rows(hash_N, 0.1, "here")
    held = (hash_N <= np.uint64(below)).sum()
    assert 0 < held < len(rows)
    possible = [(hash_N <= number).sum() for number in np.unique(hash_N)[:-1]]
    error = abs(held - 0.1 * len(rows))
    if count < 1000:
        assert error == min(abs(number - 0.1 * len(rows)) for number in possible)
    else:
        assert below == int(0.1 * 2**64) and error < 0.02 * len(rows)
    for few, message in (
        (2, r"all rows are the same; .* or data\.eval_path"),
        (1, "only one row"),
        (0, "contains no text"),
    ):
        with pytest.raises(ConfigError, match=f"here: {message}"):
            split_rows(hash_N[:few], 0.1, "here")
