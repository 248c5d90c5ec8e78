from itertools import pairwise

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.config.mixture import SourceConfig
from flaxformer_lite.data import documents as tokenizing, open_tokenizer, source, text_examples
from flaxformer_lite.data.dataset import open_dataset, open_text
from flaxformer_lite.data.documents import open_corpus
from flaxformer_lite.data.places import Places
from flaxformer_lite.data.text_examples import open_records
from flaxformer_lite.objectives.rows import row_ids
from flaxformer_lite.text import tokenizer, tokenizer_training
from flaxformer_lite.text.tokenizer import HuggingFace
from tests.objectives.tables import write_rows

TEXT = ("text",)


def texts_of(found, split):
    tokens = found.tokens[split]
    tok = found.tokenizer
    runs = [np.asarray(tokens.ids[a:b]) for a, b in pairwise(tokens.offsets)]
    assert all(run[-1] == tok.eos_id for run in runs)
    return [tok.decode(run) for run in runs]


@pytest.mark.parametrize("name", ["bytes", "byte_bpe", "sentencepiece"])
def test_every_document_is_stored_once(experiment, documents, name):
    found = open_corpus(experiment(tokenizer=name, tokens=430).data, TEXT)
    train = texts_of(found, "train")
    held_out = texts_of(found, "eval")
    assert sorted(train + held_out) == sorted(documents)
    assert 3 <= len(held_out) <= 30
    assert found.tokens["train"].ids.dtype == np.uint16
    whole = open_corpus(experiment().data, TEXT, all_held_out=True)
    assert texts_of(whole, "train") == [] and sorted(texts_of(whole, "eval")) == sorted(documents)


def test_large_documents_are_tokenized_in_pieces(experiment, tmp_path, monkeypatch):
    text = "".join(f"{n} green bottles\n" for n in range(400))
    path = tmp_path / "big.txt"
    path.write_text(text)
    whole = open_corpus(experiment(path=str(path), tokenizer="byte_bpe").data, TEXT)
    monkeypatch.setattr(tokenizing, "PIECE_CHARACTERS", 100)
    monkeypatch.setattr(tokenizing, "BATCH_CHARACTERS", 1000)
    elsewhere = experiment(path=str(path), cache=str(tmp_path / "b"), tokenizer="byte_bpe")
    held = []
    encode = HuggingFace.encode_batch
    spy = lambda self, texts: held.append(sum(map(len, texts))) or encode(self, texts)  # noqa: E731
    monkeypatch.setattr(HuggingFace, "encode_batch", spy)
    cut = open_corpus(elsewhere.data, TEXT)
    assert len(held) > 5 and max(held) < 1100, "a large document is not encoded at once"
    assert cut.fingerprint == whole.fingerprint
    for split in ("train", "eval"):
        np.testing.assert_array_equal(cut.tokens[split].ids, whole.tokens[split].ids)
        np.testing.assert_array_equal(cut.tokens[split].offsets, whole.tokens[split].offsets)
    assert texts_of(cut, "train")[0] + texts_of(cut, "eval")[0] == text


@pytest.mark.parametrize("name", ["bytes", "byte_bpe", "sentencepiece", "words"])
def test_parts_and_batches_of_any_size_are_the_same_tokens(
    experiment, tmp_path, documents, monkeypatch, name
):
    for file, part in (("a.txt", documents[:50]), ("b.txt", documents[50:90])):
        (tmp_path / file).write_text("\n".join(part))
    write_rows(tmp_path / "c.jsonl", [{"text": text} for text in documents[90:]])
    options = {"path": f"{tmp_path}/[abc].*", "tokenizer": name, "tokens": 430}
    monkeypatch.setattr(tokenizing, "PIECE_CHARACTERS", 150)
    whole = open_corpus(experiment(cache=str(tmp_path / "whole"), **options).data, TEXT)
    monkeypatch.setattr(source, "PART_BYTES", 1)
    assert whole.source.parts() == [slice(0, 1), slice(1, 2), slice(2, 3)]
    monkeypatch.setattr(tokenizing, "BATCH_CHARACTERS", 1000)  # a document may go over two
    parts = open_corpus(experiment(**options).data, TEXT)
    for split, tokens in whole.tokens.items():
        for column in (*tokenizing.TEXT, *tokenizing.COLUMNS):
            due = tokens.store.values(column)
            np.testing.assert_array_equal(parts.tokens[split].store.values(column), due)
        np.testing.assert_array_equal(parts.tokens[split].offsets, tokens.offsets)
    assert len(list((tmp_path / "cache").glob("store-*"))) == 1


def test_a_sample_of_the_training_text_trains_the_tokenizer(experiment, tmp_path, monkeypatch):
    path = tmp_path / "big.txt"
    path.write_text("abc def\n" * 500 + "zyxwvu\n" * 500)
    cfg = experiment(path=str(path), eval_fraction=0.6, tokenizer="byte_bpe")
    found = open_corpus(cfg.data, TEXT)
    assert "zyxwvu" in texts_of(found, "eval")[0] and "z" not in texts_of(found, "train")[0]
    assert len(found.tokenizer.encode("zyxwvu")) == 6 > len(found.tokenizer.encode("abc def"))
    monkeypatch.setitem(tokenizer_training.MOST, "byte_bpe", 10_000)
    seen = []
    train = lambda cfg, texts: seen.extend(texts) or tokenizer.Bytes()  # noqa: E731
    monkeypatch.setattr(tokenizer_training, "train", train)
    open_corpus(experiment(tokenizer="byte_bpe").data, TEXT)
    assert 3_000 < sum(map(len, seen)) < 15_000


def test_the_second_time_comes_from_the_cache(experiment, monkeypatch):
    cfg = experiment(tokenizer="byte_bpe")
    first = open_corpus(cfg.data, TEXT)
    records = open_records(cfg.data, first, cfg.objective, "train")
    monkeypatch.setattr(tokenizing, "write_texts", None)
    monkeypatch.setattr(open_tokenizer.tokenizer_training, "train", None)
    monkeypatch.setattr(type(cfg.objective), "plan_rows", None)
    again = open_corpus(cfg.data, TEXT)
    assert again.fingerprint == first.fingerprint
    found = open_records(cfg.data, again, cfg.objective, "train")
    np.testing.assert_array_equal(row_ids(found, 1)[0], row_ids(records, 1)[0])


@pytest.mark.parametrize("objective", ["causal_lm", "masked_lm", "seq2seq", "span_corruption"])
def test_a_large_text_is_packed_in_ranges_of_its_documents(
    experiment, documents, tmp_path, monkeypatch, objective
):
    rows = [{"text": text, "source": text[:40], "target": text[-40:]} for text in documents]
    path = write_rows(tmp_path / "pairs.jsonl", rows)

    def plan_of(cache):
        cfg = experiment(objective, path=path, cache=str(tmp_path / cache), length=64)
        found = open_corpus(cfg.data, cfg.objective.columns)
        records = open_records(cfg.data, found, cfg.objective, "train")
        assert records.plan.first[0] == 0 and records.plan.first[-1] == len(records.plan.document)
        assert len(row_ids(records, len(records) - 1))
        columns = (records.plan.document, records.plan.start, records.plan.length)
        columns = [column for column in columns if len(column)]
        return list(zip(*(column.tolist() for column in columns), strict=True)), len(records)

    whole, rows = plan_of("whole")
    monkeypatch.setattr(text_examples, "PLANNED_TOKENS", 3000)
    parts, more_rows = plan_of("parts")
    assert rows <= more_rows <= rows + 40
    # Windows begin anew, and each token behind a document's first is still a label once.
    if objective == "causal_lm":
        whole, parts = (
            sorted((d, at) for d, start, n in plan for at in range(start + 1, start + n))
            for plan in (whole, parts)
        )
    assert parts == whole


@pytest.mark.parametrize("change", ["eval_fraction", "tokenizer", "path"])
def test_the_fingerprint_follows_text_split_and_tokenizer(experiment, tmp_path, change):
    (tmp_path / "other.txt").write_text("something else\n" * 50)
    values = {"eval_fraction": 0.2, "tokenizer": "byte_bpe", "path": str(tmp_path / "other.txt")}
    changed = open_corpus(experiment(**{change: values[change]}).data, TEXT)
    assert changed.fingerprint != open_corpus(experiment().data, TEXT).fingerprint


def test_other_piece_is_of_another_document_and_as_long_as_wanted_where_one_is(experiment):
    cfg = experiment("masked_lm", options={"pairs": "next_sentence"})
    records = open_records(cfg.data, open_corpus(cfg.data, TEXT), cfg.objective, "train")
    draws = [np.random.default_rng(n) for n in range(100)]
    own = records.plan.document[records.plan.first[5]]
    starts = {
        records.piece(p).tobytes(): records.plan.document[p] for p in range(len(records.plan.start))
    }
    others = [starts[records.other_piece(5, rng).tobytes()] for rng in draws]
    assert own not in others and len(set(others)) > 20
    wanted = int(np.median(records.plan.length))
    assert min(len(records.other_piece(5, rng, wanted)) for rng in draws) >= wanted
    assert len(records.other_piece(5, draws[0], 10_000)) < 10_000


def test_too_little_text(experiment, tmp_path):
    (tmp_path / "short.txt").write_text("just some words, too few\n" * 4)
    cfg = experiment(path=str(tmp_path / "short.txt"), length=128)
    found = open_corpus(cfg.data, TEXT)
    with pytest.raises(ConfigError, match=r"9\d.*tokens.*data\.length=128; give more"):
        open_records(cfg.data, found, cfg.objective, "train")
    (tmp_path / "shorter.txt").write_text("a")
    cfg = experiment("span_corruption", eval_path=experiment().data.path)
    with pytest.raises(ConfigError, match=r"^data\.path=.*shorter.txt':.*no document"):
        open_text(cfg, str(tmp_path / "shorter.txt"))


def test_the_field_of_jsonl_can_be_named(experiment, documents, tmp_path):
    rows = [{"id": n, "body": text} for n, text in enumerate(documents)]
    path = write_rows(tmp_path / "other.jsonl", rows)
    named, due = (
        open_dataset(cfg).example(0, 0, 0)["inputs"]["input_ids"].tolist()
        for cfg in (experiment(path=path, text_field="body"), experiment())
    )
    assert named == due
    with pytest.raises(ConfigError, match=r"\(keys: 'id', 'body'\); set .*text_field=body"):
        open_dataset(experiment(path=path))
    for held in ("", "dev.jsonl"):  # the built-in text has no such field
        with pytest.raises(ConfigError, match=r"data.text_field='body':.*applies"):
            DataConfig(text_field="body", eval_path=held)


@pytest.mark.parametrize("tokenizer", ["bytes", "byte_bpe"])
def test_held_out_text_of_ones_own(experiment, documents, tmp_path, tokenizer):
    """All of data.path is trained on, and all of data.eval_path is held out; the tokenizer sees the
    former only."""
    dev = tmp_path / "dev.txt"
    dev.write_text("ŵŷẑ " * 60)
    cfg = experiment(eval_path=str(dev), tokenizer=tokenizer, tokens=430)
    train = open_dataset(cfg)
    held = open_dataset(cfg, "eval")
    found = train.sources[""].corpus
    assert sorted(texts_of(found, "train")) == sorted(documents)
    assert texts_of(found, "eval") == [dev.read_text()]
    assert len(found.tokenizer.encode("ŵŷẑ")) == 7 and held.num_examples > 3
    assert held.sources[""].corpus.fingerprint == found.fingerprint
    assert found.fingerprint != open_dataset(experiment(tokenizer=tokenizer)).fingerprint
    (place,) = Places(train.sources[""]).places(train.records, 0)[:1]
    assert place.startswith(f"{cfg.data.path}:")
    (np.arange(200) % 250).astype(np.uint16).tofile(tmp_path / "val.bin")
    (np.arange(1000) % 250).astype(np.uint16).tofile(tmp_path / "train.bin")
    cfg = experiment(path=str(tmp_path / "train.bin"), eval_path=str(tmp_path / "val.bin"))
    ids = open_corpus(cfg.data, TEXT).tokens
    assert [len(ids[split].ids) // 100 for split in ("train", "eval")] == [10, 2]


def test_held_out_text_that_cannot_be_used_is_said(experiment, tmp_path, monkeypatch):
    short = tmp_path / "short.txt"
    short.write_text("a")
    none = str(tmp_path / "none.txt")
    said = r"^data\.eval_path='.*short.txt'.*no document of the eval split is long enough"
    with pytest.raises(ConfigError, match=said):
        open_dataset(experiment("span_corruption", eval_path=str(short)))
    with pytest.raises(ConfigError, match=r"eval_path='dev\.txt': is not for a mixture"):
        DataConfig(eval_path="dev.txt", mixture={"code": SourceConfig(corpus="stdlib_code")})
    tokenizes = lambda *_: pytest.fail("tokenizes before it looks")  # noqa: E731
    monkeypatch.setattr(tokenizing, "write_texts", tokenizes)
    with pytest.raises(ConfigError, match=r"^data\.eval_path=.*none.txt': no such file"):
        open_corpus(experiment(eval_path=none).data, TEXT)
    blank = tmp_path / "blank.txt"
    blank.write_text(" \n")
    with pytest.raises(ConfigError, match=r"^data\.path=.*blank.txt':.*no text"):
        open_corpus(experiment(path=str(blank), eval_path=str(short), tokenizer="words").data, TEXT)
