"""What `predict` prints for published heads, beside the libraries that publish them."""

import itertools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite.__main__ import main
from flaxformer_lite.config import ConfigError, to_config_dict
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.objectives.tables.reranking import Reranking
from flaxformer_lite.objectives.tables.zero_shot import ZeroShot
from flaxformer_lite.runs.evaluate_file import open_file, open_trained
from flaxformer_lite.runs.start.adopt import read_experiment
from tests.marks import daily
from tests.objectives import learned

ROOT = Path(__file__).parents[1] / "fixtures" / "heads"
EXPECTED = json.loads((ROOT / "expected.json").read_text())
RERANK = EXPECTED["rerank"]
ZERO_SHOT = EXPECTED["zero_shot"]


def folder_of(name, where, **fields):
    folder = Path(shutil.copytree(ROOT / name, where / name, dirs_exist_ok=True))
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


def predict(folder, rows, where, *flags):
    data = learned.write(where / "rows.jsonl", rows)
    output = where / "predicted.jsonl"
    output.unlink(missing_ok=True)
    main(["predict", "--model", str(folder), "--data", data, "--output", str(output), *flags])
    return [json.loads(line) for line in output.read_text().splitlines()]


def numbers(rows):
    return [row["prediction"] for row in rows]


def activation_of(name):
    return {"sentence_transformers": {"activation_fn": f"torch.nn.modules.any.{name}"}}


@pytest.mark.parametrize(
    ("fields", "activation"),
    [
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "Identity"),
        ({"sbert_ce_default_activation_function": None}, "Sigmoid"),
        ({"sentence_transformers": {"version": "4.1.0"}}, "Sigmoid"),
        (activation_of("Identity"), "Identity"),
    ],
)
def test_a_cross_encoder_scores_as_sentence_transformers_does(tmp_path, fields, activation):
    folder = folder_of("reranker", tmp_path, **fields)
    due = RERANK["scores"][activation]
    np.testing.assert_allclose(numbers(predict(folder, RERANK["rows"], tmp_path)), due, atol=5e-6)


def test_a_folder_of_version_6_keeps_its_activation_when_converted(tmp_path, capsys):
    folder = folder_of("reranker", tmp_path)
    config = folder / "config_sentence_transformers.json"
    config.write_text(json.dumps(RERANK["config"]))
    main(["convert", str(folder), str(tmp_path / "again")])
    main(["inspect", str(tmp_path / "again")])
    assert re.search(r"^form +safetensors \(reranking\)$", capsys.readouterr().out, re.M)
    found = numbers(predict(tmp_path / "again", RERANK["rows"], tmp_path))
    np.testing.assert_allclose(found, RERANK["scores"]["Tanh"], atol=5e-6)
    card = (tmp_path / "again" / "README.md").read_text()
    assert "text-ranking" in card and 'CrossEncoder("again")' in card


def test_a_cross_encoder_is_evaluated_by_its_ranks(tmp_path, capsys):
    folder = folder_of("reranker", tmp_path, **activation_of("Identity"))
    data = learned.write(tmp_path / "rows.jsonl", RERANK["rows"])
    main(["evaluate", "--model", str(folder), "--data", data, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {name: found[name] for name in ("mrr_10", "ndcg_10")} == pytest.approx(RERANK["metrics"])


def test_what_says_nothing_of_a_cross_encoder_is_a_classifier(tmp_path):
    folders = [ROOT / "reranker", folder_of("nli_roberta", tmp_path, **activation_of("Sigmoid"))]
    for folder in folders:
        assert type(open_trained(folder).cfg.objective) is Classification


QUERY = {"default_prompt_name": "query", "prompts": {"query": "q: "}}


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"activation_fn": "mine.Own"}, r"activation is 'mine\.Own': read are CELU"),
        (QUERY, "default_prompt_name: a prompt of a cross-encoder is not put before"),
    ],
)
def test_a_cross_encoder_of_another_kind_is_refused(tmp_path, described, message):
    folder = folder_of("reranker", tmp_path)
    config = folder / "config_sentence_transformers.json"
    config.write_text(json.dumps(RERANK["config"] | described))
    with pytest.raises(ConfigError, match=message):
        open_trained(folder)
    main(["convert", str(folder), str(tmp_path / "again")])  # its weights are read all the same


def test_a_run_its_folder_and_a_run_from_that_give_the_same_numbers(tmp_path):
    """Pairs are longer than an example of the run, and cut alike."""
    cfg = learned.config(tmp_path, Reranking(), RERANK["rows"], length=12, steps=2)
    flaxformer_lite.run(cfg, tmp_path / "run")
    due = numbers(predict(tmp_path / "run", RERANK["rows"], tmp_path))
    assert all(0 < one < 1 for one in due) and len(set(due)) > 40
    main(["convert", str(tmp_path / "run"), str(tmp_path / "published")])
    found = numbers(predict(tmp_path / "published", RERANK["rows"], tmp_path))
    np.testing.assert_allclose(found, due, atol=1e-6)


@pytest.mark.parametrize("activation", ["Identity", "Sigmoid"])
def test_training_goes_on_from_a_cross_encoders_head_and_activation(tmp_path, activation):
    folder = folder_of("reranker", tmp_path, **activation_of(activation))
    page = to_config_dict(learned.config(tmp_path, Reranking(), RERANK["rows"], steps=1))
    page.train.init_from = str(folder)
    page.data.tokenizer.path = ""
    page.data.length = 20
    page.optimizer.learning_rate = 1e-20  # one step, which changes nothing
    flaxformer_lite.run(page, tmp_path / "run")
    found = numbers(predict(tmp_path / "run", RERANK["rows"], tmp_path))
    np.testing.assert_allclose(found, RERANK["scores"][activation], atol=5e-6)
    page.train.init_from = str(tmp_path / "run")
    assert read_experiment(page).objective.activation == activation


PAIRS = list(itertools.product(["bart", "deberta", "roberta"], ["single", "multi", "lone"]))
ONCE = [("bart", "single"), ("deberta", "multi"), ("roberta", "lone")]


@pytest.mark.parametrize(("model", "way"), daily(PAIRS, ONCE))
def test_labels_by_what_a_text_entails_score_as_in_transformers(tmp_path, model, way):
    """The third text is cut, and its hypotheses are not."""
    labels = ZERO_SHOT["labels"][: 1 if way == "lone" else None]
    flags = ["--labels", ", ".join(labels), "--hypothesis", ZERO_SHOT["hypothesis"]]
    flags += ["--multi-label"] if way == "multi" else []
    rows = [{"text": text} for text in ZERO_SHOT["texts"]]
    found = predict(ROOT / f"nli_{model}", rows, tmp_path, *flags)
    shares = np.asarray([[row[f"probability_{label}"] for label in labels] for row in found])
    due = np.reshape(ZERO_SHOT["scores"][model][way], shares.shape)
    np.testing.assert_allclose(shares, due, atol=5e-6)
    for row, of_row in zip(found, shares, strict=True):
        above = [label for label, share in zip(labels, of_row, strict=True) if share > 0.5]
        chosen = labels[int(np.argmax(of_row))] if way == "single" else ";".join(above)
        assert row["prediction"] == chosen


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        ("reranker", ["--labels", "a,b"], "a label entailment; this model's are none: choose"),
        ("nli_bart", ["--labels", " ,"], "--labels: names no label"),
        ("nli_bart", ["--labels=a", "--hypothesis=a"], "--hypothesis='a': must have {} in place"),
        ("nli_bart", ["--multi_label"], "--hypothesis, --multi_label: are for --labels"),
    ],
)
def test_labels_that_cannot_be_predicted_are_refused(tmp_path, capsys, model, flags, message):
    data = learned.write(tmp_path / "rows.jsonl", [{"text": "one"}])
    with pytest.raises(SystemExit):
        main(["predict", "--model", str(ROOT / model), "--data", data, *flags])
    error = capsys.readouterr().err
    assert message in error and error.strip().count("\n") == 0


def test_a_classifier_without_entailment_names_its_labels(tmp_path):
    folder = folder_of("nli_bart", tmp_path, id2label={"0": "no", "1": "maybe", "2": "yes"})
    classes = open_trained(folder).cfg.objective.published_fields().get("labels", ())
    with pytest.raises(ConfigError, match="this model's are no, maybe, yes: choose another"):
        ZeroShot.of_classes(classes, ("a",), "{}", multi_label=False)


@pytest.mark.parametrize("problem", EXPECTED["problems"])
def test_labels_and_problem_type_are_those_of_the_folder(tmp_path, problem):
    folder = folder_of("nli_bart", tmp_path, problem_type=problem)
    found = predict(folder, [{"text": text} for text in ZERO_SHOT["texts"][:2]], tmp_path)
    labels = ("contradiction", "neutral", "entailment")
    kind = "prediction" if problem == "regression" else "probability"
    for row, due in zip(found, EXPECTED["problems"][problem], strict=True):
        by_label = dict(zip(labels, due, strict=True))
        above = [label for label in labels if by_label[label] > 0.5]
        chosen = {
            "single_label_classification": {"prediction": max(labels, key=by_label.get)},
            "multi_label_classification": {"prediction": ";".join(above)},
        }.get(problem, {})
        shares = {f"{kind}_{label}": pytest.approx(by_label[label], abs=5e-6) for label in labels}
        assert row == {"text": row["text"], **chosen, **shares}
    if problem == "regression":
        data = learned.write(tmp_path / "known.jsonl", [{"text": "one", "label": 1.5}])
        message = r"row 1: label is one number, .* predicts 3 \(contra"
        with pytest.raises(ConfigError, match=message):
            open_file(open_trained(folder), data)


def test_a_head_of_one_number_prints_it(tmp_path):
    folder = folder_of("reranker", tmp_path, problem_type="regression")
    rows = [{"text": row["query"], "text2": row["passage"]} for row in RERANK["rows"]]
    due = RERANK["scores"]["Identity"]
    np.testing.assert_allclose(numbers(predict(folder, rows, tmp_path)), due, atol=5e-6)


def test_a_column_that_a_prediction_replaces_is_named(tmp_path, capsys):
    folder = folder_of("reranker", tmp_path)
    rows = [{"text": "one", "text2": "two", "prediction": 7.0}]
    assert numbers(predict(folder, rows, tmp_path)) != [7.0]
    assert "predictions replace: 'prediction'" in capsys.readouterr().err
