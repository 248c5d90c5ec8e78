"""`lm-eval` without the harness, which is an extra; benchmarks/lm_eval_columns.py runs it beside
transformers."""

import argparse
import sys

import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.lm_eval.commands.lm_eval import lm_eval
from flaxformer_lite.contrib.lm_eval.run_lm_eval import harness_arguments


def arguments(*line):
    parser = argparse.ArgumentParser()
    parser.add_argument("--allow_plugins", action="store_true")
    lm_eval.add_arguments(parser, parser)
    return harness_arguments(parser.parse_args(line))


def test_the_harness_gets_our_model_and_its_own_flags(tmp_path):
    line = ["--model", str(tmp_path), "--length", "64", "--tasks", "arc_easy", "boolq"]
    got = arguments(*line, "--", "--limit", "5", "--apply_chat_template", "--seed", "1")
    model_args = f"pretrained={tmp_path},dtype=float32,max_length=64"
    want = ["run", "--model", "flaxformer_lite", "--model_args", model_args]
    want += ["--tasks", "arc_easy,boolq", "--batch_size", "8"]
    assert got == [*want, "--limit", "5", "--apply_chat_template", "--seed", "1"]


def test_a_folder_that_the_harness_would_split_is_refused(tmp_path):
    folder = tmp_path / "rate=3,best"
    folder.mkdir()
    with pytest.raises(ConfigError, match="commas and equal signs"):
        arguments("--model", str(folder), "--tasks", "boolq")


def test_a_missing_harness_is_named_with_its_extra(tmp_path, monkeypatch, refusal):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    line = ["--model", tmp_path, "--tasks", "boolq", "--", "--seed", "1"]
    assert "pip install 'flaxformer_lite[lm-eval]'" in refusal("lm-eval", *line)
