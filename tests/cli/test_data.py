import json
import re

import pytest

from flaxformer_lite.__main__ import main
from flaxformer_lite.data import tokenizing

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
WORDS = "win prize free now click hello mother dinner tomorrow meeting"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"{n} {WORDS} " * (1 + n % 7)}) + "\n" for n in range(100))
    )
    return [
        "--config=gpt2_tiny",
        f"--config.data.path={path}",
        f"--config.data.cache={tmp_path / 'cache'}",
        "--config.data.tokenizer.name=bytes",
        "--config.data.length=64",
        "--config.data.eval_fraction=0.2",
        "--config.train.steps=10",
        "--config.train.batch_size=4",
    ]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "spam.csv"
    path.write_text(
        "text,label\n" + "".join(f"{n} {WORDS},{'spam' if n % 3 else 'ham'}\n" for n in range(60))
    )
    return [
        "--config=classify",
        f"--config.data.path={path}",
        f"--config.data.cache={tmp_path / 'cache'}",
        "--config.data.tokenizer.name=bytes",
        "--config.data.length=70",
    ]


def printed(capsys, *argv):
    main(["data", *argv])
    return capsys.readouterr().out


def test_stats_of_a_text(text, tmp_path, capsys):
    out = printed(capsys, "stats", *text)
    lines = {line.partition("  ")[0]: line.partition("  ")[2].strip() for line in out.splitlines()}
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
    assert (
        lines["padding"]
        == f"{1 - (tokens[0] - 1) / (rows * 64):.1%} of {rows * 64:,} tokens of {rows} rows"
    )
    assert lines["the run"] == f"10 steps of 4 rows: {40 / rows:.3g} epochs"
    once = [
        "--config.train.steps=0",
        "--config.train.epochs=1",
        f"--config.train.batch_size={rows - 1}",
    ]
    assert f"2 steps of {rows - 1} rows: 1 epochs" in printed(capsys, "stats", *text, *once), (
        "as train rounds"
    )
    counted = [int(line.split()[3]) for line in out.splitlines() if "█" in line]
    assert "the end of each held out" in printed(
        capsys, "stats", *text, "--config.data.eval_fraction=0.02"
    )
    assert f"1 of {__file__} held out" in printed(
        capsys, "stats", *text, "--config.data.eval_path", __file__
    )
    assert sum(counted) == train and f"longest {max(map(len, documents)) + 1}" in out


def test_stats_count_folded_labels_as_one(tmp_path, capsys):
    rows = [
        f"text number {i},{label}" for i, label in enumerate(["ham", "ham", "Ham ", "spam"] * 20)
    ]
    path = tmp_path / "mails.csv"
    path.write_text("\n".join(["text,label", *rows]))
    flags = ["--config=classify", f"--config.data.path={path}"]
    flags.append("--config.objective.fold_labels=True")
    out = printed(capsys, "stats", *flags)
    (counts,) = [line for line in out.splitlines() if line.startswith("by label")]
    assert counts.count("am ") == 2 and "Ham" not in counts


def test_stats_of_a_table(table, capsys):
    out = printed(capsys, "stats", *table)
    counts = next(line for line in out.splitlines() if line.startswith("by label"))
    spam, ham = (int(counts.partition(name)[2].split()[0]) for name in ("spam", "ham"))
    assert f"{spam + ham} rows, {spam + ham} examples; columns text, label" in out
    assert 1.5 < spam / ham < 2.5
    assert "examples cut at data.length=70 tokens" not in out
    assert "examples cut at data.length=30 tokens" in printed(
        capsys, "stats", *table, "--config.data.length=30"
    )


def test_show_prints_what_a_run_reads_first(text, capsys):
    first = printed(capsys, "show", *text, "--rows", "2")
    assert (
        first
        == printed(capsys, "show", *text, "--rows", "2")
        != printed(capsys, "show", *text, "--rows", "2", "--seed=9")
    )
    assert printed(capsys, "show", *text, "--rows=1") == first[: first.index("row 1\n")], (
        "rows do not depend on their number"
    )
    ids, labels = (
        next(x for x in first.splitlines() if x.startswith(name))
        for name in ("input_ids", "labels")
    )
    read = ids.removeprefix("input_ids").strip()
    assert labels.replace("«", "").replace("»", "").removeprefix("labels").strip()[:40] == read[
        1:41
    ].replace(" │ ", "")


def test_tokenize_fills_the_cache_that_a_run_finds(text, tmp_path, capsys, monkeypatch):
    out = printed(capsys, "tokenize", *text)
    (folder,) = (tmp_path / "cache").glob("tokens-*")
    assert f"tokens, written: {folder}" in out and "MB/s" in out
    monkeypatch.setattr(tokenizing, "write_tokens", None)
    assert "tokens, already in the cache: " in printed(capsys, "tokenize", *text)


def test_tokenize_keeps_nothing_of_a_table(table, capsys):
    assert (
        "cache  the tokenizer only; a table of less than 1 MiB is tokenized when a run starts"
        in printed(capsys, "tokenize", *table)
    )


def test_wrong_words_are_one_line(text, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["data", "stat", *text])
    assert "argument what: invalid choice: 'stat'" in capsys.readouterr().err


def test_the_sources_of_a_mixture_are_told_apart(text, tmp_path, capsys):
    (tmp_path / "few.txt").write_text("quite another text\n" * 200)
    config = [arg for arg in text if not arg.startswith("--config.data.path")]
    config += [f"--config.data.mixture.many.path={tmp_path / 'text.jsonl'}"]
    config += [f"--config.data.mixture.few.path={tmp_path / 'few.txt'}"]
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
    ends = [
        "--config.train.steps=1",
        "--config.data.mixture.many.epochs=0.1",
        "--config.data.mixture.few.epochs=0.1",
    ]
    rows = printed(capsys, "show", *config, *ends, "--rows", "900").count("row ")
    assert 4 <= rows < 900, "all that there are"


def test_what_is_learned_cut_and_dropped_of_both_sides_of_a_preference_is_shown(tmp_path, capsys):
    rows = []
    for number in range(12):
        rows.append({"prompt": f"{number}", "chosen": "yes " * 20, "rejected": "no"})
        rows.append({"prompt": f"{number} " * 40, "chosen": "yes", "rejected": "no"})
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = printed(
        capsys,
        "show",
        "--config=dpo",
        f"--config.data.path={path}",
        "--config.data.tokenizer.name=bytes",
        "--config.data.length=96",
        f"--config.data.eval_path={path}",
        "--rows=1",
    )
    lines = {line.partition("  ")[0]: line.partition("  ")[2].strip() for line in out.splitlines()}
    chosen, rejected = lines["labels"].split(" │ ")
    assert re.search("assistant:↵«yes yes .*»", chosen), "the beginning of a long answer is learned"
    assert re.search(r"assistant:↵«no\[EOS\]»", rejected)
    assert re.fullmatch(r"\d+ tokens of text 1", lines["cut"])
    assert re.search(r"rows dropped \(to train on: (\d*[02468], )+", lines["notice"]), lines[
        "notice"
    ]
