"""Mixtures of texts: shares, epochs, restarts and hosts, through plans."""

import dataclasses
import itertools
import random

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.config.mixture import SourceConfig
from flaxformer_lite.data import dummy, mixing
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.objectives.rows import row_ids
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.objectives.text.text_objective import label_counts, unigram_loss
from flaxformer_lite.registry import available, resolve_class
from tests.marks import daily
from tests.objectives.tables import write_rows

WORDS = {
    "web": "alpha beta gamma delta",
    "code": "def return while import",
    "books": "whale ship sea captain",
}


@pytest.fixture
def mixed(tmp_path, experiment):
    """mixed(objective, web={..}, code={..}, train={..}, **data): an experiment on texts of
    different sizes."""
    draw = random.Random(1)
    for name, count in (("web", 90), ("code", 40), ("books", 60)):
        words = WORDS[name].split()
        texts = [" ".join(draw.choices(words, k=draw.randint(8, 60))) for _ in range(count)]
        rows = [{"text": f"{name} {n}: {text}"} for n, text in enumerate(texts)]
        write_rows(tmp_path / f"{name}.jsonl", rows)

    def make(objective="causal_lm", *, train=None, **options):
        named = {name: options.pop(name) for name in WORDS if name in options} or {
            "web": {},
            "code": {"weight": 0.5},
        }
        sources = {
            name: SourceConfig(
                **{"path": "" if "corpus" in one else str(tmp_path / f"{name}.jsonl"), **one}
            )
            for name, one in named.items()
        }
        cfg = experiment(objective, path="", mixture=sources, **options)
        return dataclasses.replace(
            cfg,
            train=dataclasses.replace(cfg.train, **{"steps": 20, "batch_size": 8, **(train or {})}),
        )

    return make


def found(data, count, seed=3):
    """The source and the row of each of the first examples, with the plan's number of rows."""
    find = data.finder(seed)
    return [(records.source, len(records), row) for records, row in map(find, range(count))]


def rows_of(batches):
    leaves = [(batch["inputs"]["input_ids"], batch["targets"]["labels"]) for batch in batches]
    return [a.tobytes() + b.tobytes() for pair in leaves for a, b in zip(*pair, strict=True)]


def joined(data, hosts, steps, start=0, size=8):
    """Rows of the stream, put together from those of several hosts."""
    own = [
        data.batches(batch_size=size, seed=3, start_step=start, rows=r)
        for r in np.split(np.arange(size), hosts)
    ]
    return [
        row for step in itertools.islice(zip(*own, strict=True), steps) for row in rows_of(step)
    ]


def test_the_same_stream_for_any_hosts_restarts_and_batches(mixed):
    cfg = mixed(mixture_schedule="10: code=3")
    data = open_dataset(cfg)
    whole = joined(data, 1, 24)
    assert [joined(data, hosts, 24) for hosts in (2, 4, 8)] == [whole] * 3
    assert joined(open_dataset(cfg), 2, 7, start=17) == whole[17 * 8 :]
    assert joined(data, 1, 48, size=4) == whole, "another split of the same rows"


def test_each_row_of_a_source_once_an_epoch_in_another_order(mixed):
    data = open_dataset(mixed("ul2", length=96))
    stream = found(data, 5 * data.num_examples)
    for name, rows in data.sources.items():
        own = [row for source, _, row in stream if source == name]
        orders = []
        for epoch in itertools.count():
            size = len(rows.open_plan(epoch % rows.num_plans))
            if len(own) < size:
                break
            assert sorted(own[:size]) == list(range(size))
            orders = [*orders, tuple(own[:size])]
            own = own[size:]
        assert len(orders) >= 3 and len(set(orders)) == len(orders)


@pytest.mark.parametrize("name", daily(["causal_lm", "span_corruption"], ["span_corruption"]))
def test_every_token_of_each_source_once_an_epoch(mixed, name):
    data = open_dataset(mixed(name, length=48, web={"epochs": 1}, code={"epochs": 2, "weight": 3}))
    sources = data.sources
    total = data.mixing.total
    assert total == sources["web"].rows_of(1) + sources["code"].rows_of(2)
    seen = {n: np.zeros(len(s.corpus.tokens["train"].ids), int) for n, s in sources.items()}
    shared = int(name == "causal_lm")
    for records, index in map(data.finder(3), range(total)):
        for piece in range(int(records.plan.first[index]), int(records.plan.first[index + 1])):
            start = int(records.plan.start[piece])
            seen[records.source][start + shared : start + int(records.plan.length[piece])] += 1
    for source, epochs in (("web", 1), ("code", 2)):
        offsets = sources[source].corpus.tokens["train"].offsets
        due = np.full(len(seen[source]), epochs)
        due[offsets[:-1] if shared else offsets[1:] - 1] = 0
        assert (seen[source] == due).all()


def test_weights_by_size_and_temperature(mixed):
    sizes = [len(rows.splits["train"]) for rows in open_dataset(mixed()).sources.values()]
    for temperature in (1, 2, 100):
        data = open_dataset(mixed(web={}, code={}, mixture_temperature=temperature))
        powers = np.power(sizes, 1 / temperature)
        assert data.mixing.shares(0) == pytest.approx(powers / powers.sum())


def test_a_schedule_in_stages_and_lines(mixed):
    stages = {"mixture_schedule": "10: books=2; 20-40: web=0, code=3", "train": {"steps": 60}}
    cfg = mixed(web={}, code={}, books={"weight": 0}, **stages)
    # in the order of names: books, code, web
    shares = open_dataset(cfg).mixing.shares
    assert shares(9 * 8) == [0, 0.5, 0.5] and shares(10 * 8) == [0.5, 0.25, 0.25]
    assert shares(30 * 8) == pytest.approx([2 / 4.525, 2.05 / 4.525, 0.475 / 4.525])
    assert shares(41 * 8) == pytest.approx([0.4, 0.6, 0]), "the row before completes one of web's"


def test_held_out_rows_come_from_the_sources_in_turn_each_once(mixed):
    data = dataclasses.replace(open_dataset(mixed(web={"weight": 9}, code={})), split="eval")
    assert sorted(data.order) == list(range(data.num_examples))
    own = [data.records.find(int(row))[0].source for row in data.order]
    least = min(own.count("web"), own.count("code"))
    assert all(abs(own[:n].count("web") - n / 2) <= 1 for n in range(2 * least))
    targets = [batch["targets"] for batch in data.batches(batch_size=8)]
    web, code = (np.concatenate([t[f"source/{name}"] for t in targets]) for name in ("web", "code"))
    assert (web ^ code).all()
    for name, tag in (("web", web), ("code", code)):
        assert tag[: len(own)].sum() == own.count(name)


def test_one_tokenizer_of_all_sources(mixed, tmp_path):
    data = open_dataset(mixed(tokenizer="byte_bpe", tokens=420))
    assert len({rows.corpus.tokenizer.fingerprint for rows in data.sources.values()}) == 1
    assert len(list((tmp_path / "cache").glob("tokenizer-*"))) == 1
    for word in (" gamma", " import"):
        assert len(data.tokenizer.encode(word)) == 1, "it knows the words of both"


def test_a_source_reads_its_own_field_or_a_built_in_corpus(mixed, tmp_path):
    write_rows(tmp_path / "web.jsonl", [{"body": f"body {n} " * 9} for n in range(60)])
    corpus = open_dataset(mixed(web={"text_field": "body"})).sources["web"].corpus
    assert corpus.tokenizer.decode(corpus.tokens["train"].ids[:4]) == "body"
    data = DataConfig(path="x", text_field="content")
    section = mixing.data_of_source(data, SourceConfig(corpus="docstrings"))
    assert (section.path, section.corpus, section.text_field) == ("", "docstrings", "text")


def test_one_source_is_not_tagged(mixed):
    data = open_dataset(mixed(web={}))
    assert set(data.example(0, 0, 0)["targets"]) == {"labels", "weights"}


def of_text(name):
    cls = resolve_class("objectives", name)
    return cls.columns == ("text",) and not issubclass(cls, Task)


@pytest.mark.parametrize(
    "name", daily(filter(of_text, available("objectives")), ("causal_lm", "masked_lm"))
)
def test_every_objective_on_text(mixed, name):
    cfg = mixed(name)
    data = open_dataset(cfg)
    targets = next(data.batches(batch_size=8))["targets"]
    assert (targets["source/web"] ^ targets["source/code"]).all()
    planned = {key: np.shape(x) for key, x in dummy.example(cfg)["targets"].items()}
    assert {key: x.shape[1:] for key, x in targets.items()} == planned
    held_out = dataclasses.replace(data, split="eval")
    fitted = data.objective.fit_baseline(held_out)
    assert 0 < unigram_loss(held_out, label_counts(held_out, "train")) < np.log(data.vocab_size)
    assert np.isfinite((data.objective.baseline(held_out, fitted) or ("", 0.0))[1])


def test_noise_words_are_drawn_from_the_words_of_all_sources(mixed):
    data = open_dataset(mixed("skip_gram"))
    part = data.splits["train"].parts[0]
    own = np.unique(
        np.concatenate([piece for row in range(len(part)) for piece in row_ids(part, row)])
    )
    drawn = [data.example(row, 0, row, part)["targets"]["noise"] for row in range(8)]
    wide = np.unique(np.concatenate(drawn))
    assert (data.records.counts[wide] > 0).all() and not np.isin(wide, own).all()


ONCE = {"web": {"epochs": 1}, "code": {"epochs": 1}}
FEW = {"web": {"epochs": 0.001}, "code": {"epochs": 0.001}}


@pytest.mark.parametrize(
    "options, message",
    [
        (ONCE | {"train": {"steps": 999}}, r"train\.steps=999: needs 7,992.* to \d+ at most"),
        (
            {"web": {"epochs": 1}, "train": {"steps": 0, "epochs": 1.5}},
            r"train\.epochs=1\.5: needs .*mixture",
        ),
        (
            FEW | {"train": {"steps": 1}},
            r"batch_size=8: the mixture holds 2 .*raise.*source's epochs",
        ),
        ({"mixture_temperature": 0.001}, r"data\.mixture_temperature=0\.001:.*largest"),
        ({"web": {}, "code": {"weight": 1e-6}}, r"code\.weight=1e-06: is less than 1 of 8192 rows"),
        ({"web": {"path": "/no/such"}}, r"data\.mixture\.web\.path='/no/such': no such file"),
        ({"code": {"text_field": "body"}}, r"data\.mixture\.code\.path=.*:1: no text under 'body'"),
    ],
)
def test_what_cannot_work(mixed, options, message):
    with pytest.raises(ConfigError, match=message):
        open_dataset(mixed(**options))


def test_tasks_on_tables_have_none(mixed):
    cfg = mixed("masked_lm")
    task = resolve_class("objectives", "classification")()
    model = dataclasses.replace(cfg.model, head="sequence_classification")
    with pytest.raises(ConfigError, match=r"data\.mixture:.*classification.*set data\.path"):
        open_dataset(dataclasses.replace(cfg, objective=task, model=model))
