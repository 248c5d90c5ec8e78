import json
import re

import pytest

from flaxformer_lite.__main__ import main
from flaxformer_lite.data import documents
from tests.objectives.tables import write_rows

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
WORDS = "win prize free now click hello mother dinner tomorrow meeting"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.jsonl"
    write_rows(path, [{"text": f"{n} {WORDS} " * (1 + n % 7)} for n in range(100)])
    fields = f"path={path} cache={tmp_path}/cache tokenizer.name=bytes length=64 eval_fraction=0.2"
    own = [f"--config.data.{field}" for field in fields.split(" ")]
    return ["--config=gpt2_tiny", *own, "--config.train.steps=10", "--config.train.batch_size=4"]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "spam.csv"
    rows = [f"{n} {WORDS},{'spam' if n % 3 else 'ham'}" for n in range(60)]
    path.write_text("\n".join(["text,label", *rows]))
    fields = f"path={path} cache={tmp_path}/cache tokenizer.name=bytes length=70"
    return ["--config=classify", *(f"--config.data.{field}" for field in fields.split(" "))]


def printed(capsys, *argv):
    main(["data", *argv])
    return capsys.readouterr().out


def by_name(out):
    return {line.partition("  ")[0]: line.partition("  ")[2].strip() for line in out.splitlines()}


def test_stats_of_a_text(text, tmp_path, capsys):
    out = printed(capsys, "stats", *text)
    lines = by_name(out)
    documents = [
        json.loads(line)["text"] for line in (tmp_path / "text.jsonl").read_text().splitlines()
    ]
    train, held = (int(lines["documents"].split()[i]) for i in (0, 4))
    assert train + held == 100
    tokens = [int(lines["tokens"].split()[i].replace(",", "")) for i in (0, 4)]
    assert sum(tokens) == sum(map(len, documents)) + 100
    assert f"{tokens[0] - train:,} bytes to train on" in lines["text"]
    rows = -(-(tokens[0] - 1) // 64)
    assert lines["rows"].startswith(f"{rows:,} per epoch by causal_lm, each of 64 tokens; ")
    share = f"{1 - (tokens[0] - 1) / (rows * 64):.1%}"
    assert lines["padding"] == f"{share} of {rows * 64:,} tokens of {rows} rows"
    assert lines["the run"] == f"10 steps of 4 rows: {40 / rows:.3g} epochs"
    counted = [int(line.split()[3]) for line in out.splitlines() if "█" in line]
    assert sum(counted) == train and f"longest {max(map(len, documents)) + 1}" in out
    once = ["--config.train.steps=0", "--config.train.epochs=1"]
    for flags, said in (
        ([*once, f"--config.train.batch_size={rows - 1}"], f"2 steps of {rows - 1} rows: 1 epochs"),
        (["--config.data.eval_fraction=0.02"], "the end of each held out"),
        (["--config.data.eval_path", __file__], f"1 of {__file__} held out"),
    ):
        assert said in printed(capsys, "stats", *text, *flags)


def test_stats_count_folded_labels_as_one(tmp_path, capsys):
    rows = [
        f"text number {i},{label}" for i, label in enumerate(["ham", "ham", "Ham ", "spam"] * 20)
    ]
    path = tmp_path / "mails.csv"
    path.write_text("\n".join(["text,label", *rows]))
    flags = ["--config=classify", f"--config.data.path={path}"]
    out = printed(capsys, "stats", *flags, "--config.objective.fold_labels=True")
    (counts,) = [line for line in out.splitlines() if line.startswith("by label")]
    assert counts.count("am ") == 2 and "Ham" not in counts


def test_stats_of_a_table(table, capsys):
    out = printed(capsys, "stats", *table)
    counts = by_name(out)["by label"]
    spam, ham = (int(counts.partition(name)[2].split()[0]) for name in ("spam", "ham"))
    assert f"{spam + ham} rows, {spam + ham} examples; columns text, label" in out
    assert 1.5 < spam / ham < 2.5
    assert "examples cut at data.length=70 tokens" not in out
    cut = printed(capsys, "stats", *table, "--config.data.length=30")
    assert "examples cut at data.length=30 tokens" in cut


def test_show_prints_what_a_run_reads_first(text, capsys):
    first, again, other = (
        printed(capsys, "show", *text, "--rows", "2", f"--config.seed={seed}") for seed in (0, 0, 9)
    )
    assert first == again != other
    one = printed(capsys, "show", *text, "--rows=1")
    assert one == first[: first.index("row 1\n")], "rows do not depend on their number"
    lines = by_name(one)
    labels = lines["labels"].replace("«", "").replace("»", "")
    assert labels[:40] == lines["input_ids"][1:41].replace(" │ ", "")


def test_tokenize_fills_the_cache_that_a_run_finds(text, tmp_path, capsys, monkeypatch):
    out = printed(capsys, "tokenize", *text)
    (folder,) = (tmp_path / "cache").glob("store-*")
    assert f"tokens, written: {folder}" in out and "MB/s" in out
    monkeypatch.setattr(documents, "write_texts", None)
    assert "tokens, already in the cache: " in printed(capsys, "tokenize", *text)


def test_tokenize_keeps_nothing_of_a_table(table, capsys):
    cache = "the tokenizer only; a table of less than 1 MiB is tokenized when a run starts"
    assert by_name(printed(capsys, "tokenize", *table))["cache"] == cache


def test_the_sources_of_a_mixture_are_told_apart(text, tmp_path, capsys):
    (tmp_path / "few.txt").write_text("quite another text\n" * 200)
    config = [arg for arg in text if not arg.startswith("--config.data.path")]
    for name, file in (("many", "text.jsonl"), ("few", "few.txt")):
        config.append(f"--config.data.mixture.{name}.path={tmp_path / file}")
    out = printed(capsys, "stats", *config)
    assert re.search(r"^few documents +1 to train on, the end of each held out$", out, re.M)
    assert re.search(r"^many documents +[78]\d to train on, [12]\d held out$", out, re.M)
    assert "\nthe run         10 steps of 4 rows\n" in out
    shown = printed(capsys, "show", *config, "--rows", "20")
    assert shown.count("source     few") == shown.count("source     many") == 10
    for row in shown.split("row ")[1:]:
        assert ("another" in row) == ("few" in row)
    out = printed(capsys, "tokenize", *config)
    assert out.count("tokens, already in the cache: ") == 2
    config += [f"--config.data.mixture.{name}.epochs=0.1" for name in ("many", "few")]
    shown = printed(capsys, "show", *config, "--config.train.steps=1", "--rows", "900")
    assert 4 <= shown.count("row ") < 900, "all that there are"


def test_what_is_learned_cut_and_dropped_of_both_sides_of_a_preference_is_shown(tmp_path, capsys):
    rows = []
    for number in range(12):
        rows.append({"prompt": f"{number}", "chosen": "yes " * 20, "rejected": "no"})
        rows.append({"prompt": f"{number} " * 40, "chosen": "yes", "rejected": "no"})
    path = write_rows(tmp_path / "pairs.jsonl", rows)
    fields = f"path={path} eval_path={path} tokenizer.name=bytes length=96"
    flags = [f"--config.data.{field}" for field in fields.split(" ")]
    lines = by_name(printed(capsys, "show", "--config=dpo", *flags, "--rows=1"))
    chosen, rejected = lines["labels"].split(" │ ")
    assert re.search("assistant:↵«yes yes .*»", chosen), "the beginning of a long answer is learned"
    assert re.search(r"assistant:↵«no\[EOS\]»", rejected)
    assert re.fullmatch(r"\d+ tokens of text 1", lines["cut"])
    assert re.search(r"rows dropped \(to train on: (\d*[02468], )+", lines["notice"])
