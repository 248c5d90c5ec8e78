"""Hard negatives are those of sentence-transformers' mine_hard_negatives, and train a model."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.__main__ import main
from flaxformer_lite.cli.commands import COMMANDS
from flaxformer_lite.contrib.hard_negatives.mining import MiningRules, mine
from flaxformer_lite.contrib.hard_negatives.run_mine import find_negatives
from flaxformer_lite.inference.retrieval import Hits
from tests.objectives import tables

ROOT = Path(__file__).parents[2] / "fixtures" / "sentences"
EXPECTED = json.loads((ROOT / "retrieval.json").read_text())


def flags_of(folder):
    rows = []
    for query, documents in EXPECTED["relevant"].items():
        for name in documents:
            rows.append({"query": EXPECTED["queries"][query], "answer": EXPECTED["corpus"][name]})
    pairs = tables.write_rows(folder / "pairs.jsonl", rows)
    (folder / "corpus.txt").write_text("\n".join(EXPECTED["corpus"].values()))
    flags = {"--data": pairs, "--file": str(folder / "corpus.txt")}
    flags |= {"--model": str(ROOT / "mean_normalize"), "--output": str(folder / "mined.jsonl")}
    return ["mine", *(word for flag in flags.items() for word in flag)]


def test_negatives_are_those_of_sentence_transformers(tmp_path):
    parser = argparse.ArgumentParser()
    COMMANDS["mine"].add_arguments(parser, parser)
    args = parser.parse_args(flags_of(tmp_path)[1:])
    args.allow_plugins = False
    for options, due in EXPECTED["mined"].items():
        rules = {name.replace("num_", ""): value for name, value in json.loads(options).items()}
        found = {}
        for row in find_negatives(args, MiningRules(**rules)):
            found.setdefault((row["anchor"], row["positive"]), row["negatives"])
        for anchor, positive, *negatives in due:
            # their query may be its own negative, ours is not
            expected = [text for text in negatives if text != anchor]
            assert found[anchor, positive][: len(expected)] == expected, options


def test_rows_with_few_negatives_are_counted(tmp_path, capsys):
    main([*flags_of(tmp_path), "--range", "0:20", "--relative_margin", "0.5"])
    said = capsys.readouterr()
    assert "rows have fewer than 3" in said.err and "negatives" in said.out


def test_random_negatives_are_drawn_by_the_seed():
    hits = Hits(np.linspace(1, 0, 20, dtype=np.float32)[None], np.arange(20, dtype=np.int32)[None])
    rules = MiningRules(negatives=3, range_min=2, range_max=12, sampling="random")
    draws = [mine(hits, [{0: 1.0}], [{0, 4}], rules, seed=seed)[0] for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert all(len(set(one)) == 3 and sorted(one) == one for one in draws)
    assert all(set(one) <= set(range(3, 14)) - {4} for one in draws)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--range", "9:3"], "must end after it begins"),
        (["--range", "9:10"], "leave 1 candidates, fewer than the 3"),
        (["--columns", "anchor=nothing"], "no 'nothing'"),
    ],
)
def test_what_cannot_be_mined_is_refused(tmp_path, refusal, flags, message):
    assert message in refusal(*flags_of(tmp_path), *flags)
