"""Classification: its loss and metrics by hand, and runs from a table to published weights through
the doors of users."""

import collections
import csv
import dataclasses
import json
import re
import types

import jax
import numpy as np
import pytest

import flaxformer_lite
from configs import classify
from flaxformer_lite import load_pretrained, save_pretrained
from flaxformer_lite.__main__ import main
from flaxformer_lite.checkpoints.workdir import read_config
from flaxformer_lite.config import ConfigError, TokenizerConfig
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.model_details import load_labels, load_tokenizer
from flaxformer_lite.models import bart, bert, build_model, gpt2, roberta
from flaxformer_lite.objectives.sums import weight_sums
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.objectives.tables.tagging import Tagging
from flaxformer_lite.pretrained.save import TrainedInputs, write_companions
from flaxformer_lite.runs.evaluate_file import open_file, open_trained
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.text import tokenizer, tokenizer_training
from flaxformer_lite.text.special_tokens import Frame
from tests.objectives import learned, tables

GOOD = ("lovely", "bright", "warm")
BAD = ("awful", "grey", "cold")


def rows(count, seed=0):
    draw = np.random.default_rng(seed)
    for _ in range(count):
        label = bool(draw.random() < 0.6)
        sentence = f"a {draw.choice(GOOD if label else BAD)} day"
        yield {"sentence": sentence, "class": "good" if label else "bad"}


def write(path, table):
    table = list(table)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return path


SIZES = learned.SIZES | {"encoder_layers": 1, "init_stddev": 0.2}
GIVEN = {
    "data.length": 24,
    "data.tokenizer.name": "bytes",
    "optimizer.learning_rate": 5e-3,
    "optimizer.warmup_steps": 0,
    "mesh.data": 1,
    "train.steps": 30,
    "train.batch_size": 16,
    "train.eval_every": 15,
    "train.checkpoint_every": 15,
    "train.packing": False,  # tests/runs/test_packing.py
}


def experiment(folder, **fields):
    config = classify.get_config()
    config.model.update(SIZES)
    where = {"data.path": str(folder / "train.csv"), "data.cache": str(folder / "cache")}
    config.update_from_flattened_dict({**where, **GIVEN, **fields})
    return read_experiment(config)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The workdir of a finished run, with its data beside it."""
    folder = tmp_path_factory.mktemp("weather")
    write(folder / "train.csv", rows(160))
    held = write(folder / "test.csv", rows(40, seed=1))
    flaxformer_lite.run(experiment(folder, **{"data.eval_path": str(held)}), folder / "run")
    return folder


def command(*args):
    main([str(arg) for arg in args])


def evaluated(capsys, model, path):
    command("evaluate", "--model", model, "--data", path, "--json")
    return json.loads(capsys.readouterr().out)


def predicted(model, path, out):
    """The rows that `predict` writes, in a file of the same kind."""
    command("predict", "--model", model, "--data", path, "--output", out)
    with out.open() as file:
        return list(csv.DictReader(file))


def logits_and(**targets):
    draw = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    return draw, {"weights": np.float32([1, 1, 1, 0]), **targets}


def test_the_loss_is_the_cross_entropy_over_real_rows():
    logits, targets = logits_and(label=np.int32([0, 2, 1, 0]))
    sums = Classification(labels=("a", "b", "c")).loss(logits, targets, chunks=1)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    due = -np.mean([logs[0, 0], logs[1, 2], logs[2, 1]])
    np.testing.assert_allclose(sums.mean(weight_sums(targets)), due, rtol=1e-6)
    right = np.mean(logits[:3].argmax(axis=1) == [0, 2, 1])
    np.testing.assert_allclose(sums.metrics["accuracy"][0] / sums.metrics["accuracy"][1], right)


FIRST = [[1.0, -0.5, 0.25], [0.0, 2.0, -1.0], [0.5, 0.5, 1.5]]
SECOND = [[0.5, -1.0, 2.0], [1.5, 0.25, -0.5], [-0.75, 1.0, 0.0]]


# torch.nn.functional.cross_entropy(logits, label, weight=..., label_smoothing=...)
@pytest.mark.parametrize(
    ("logits", "label", "weights", "smoothing", "due"),
    [
        (FIRST, [0, 1, 2], (2.0, 1.0, 0.5), 0.0, 0.4290),
        (FIRST, [0, 1, 2], (), 0.1, 0.5192),
        (SECOND, [2, 0, 2], (0.5, 2.0, 1.25), 0.1, 0.87752694),
    ],
)
def test_class_weights_are_torchs_and_smoothing_too(logits, label, weights, smoothing, due):
    labels = ("a", "b", "c")
    task = Classification(labels=labels, class_weights=weights, label_smoothing=smoothing)
    given = np.float32(weights or [1.0] * 3)[np.asarray(label)]
    targets = {"label": np.int32(label), "weights": given}
    loss = task.loss(np.float32(logits), targets, chunks=1).mean()
    np.testing.assert_allclose(loss, due, atol=2e-4 if due < 0.8 else 1e-6)
    with pytest.raises(ConfigError, match="be positive"):
        Classification(class_weights=(1.0, 0.0))


def test_several_labels_and_numbers():
    logits, targets = logits_and(label=np.int32([[1, 0, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1]]))
    task = Classification(kind="multiple", labels=("a", "b", "c"))
    shares = 1 / (1 + np.exp(-logits[:3]))
    due = -np.where(targets["label"][:3], np.log(shares), np.log1p(-shares)).mean()
    np.testing.assert_allclose(task.loss(logits, targets, chunks=1).mean(), due, rtol=1e-5)
    logits, targets = logits_and(number=np.float32([1, 2, 3, 9]))
    loss = Classification(kind="number").loss(logits, targets, chunks=1).mean()
    np.testing.assert_allclose(loss, np.mean((logits[:3, 0] - [1, 2, 3]) ** 2), rtol=1e-6)


def test_a_run_learns_and_keeps_the_names_of_its_labels(trained):
    last = tables.read_split(trained / "run")[-1]
    assert last["accuracy"] > 0.9 and {"f1", "matthews"} <= last.keys()
    labels = read_config(trained / "run").objective.labels
    assert labels == ("bad", "good") == tuple(load_labels(trained / "run"))


def test_the_baseline_of_evaluate_is_fitted_to_the_training_rows(trained, tmp_path, capsys):
    """The majority of these rows is `bad`, that of the training rows `good`."""
    only = [row for row in rows(40, seed=3) if row["class"] == "bad"] + list(rows(4, seed=4))
    path = write(tmp_path / "bad.csv", only)
    share = sum(row["class"] == "good" for row in only) / len(only)
    assert share < 0.5
    told = evaluated(capsys, trained / "run", path)
    assert told["baseline"] == {"majority class of the training rows": pytest.approx(share)}
    folder = tmp_path / "published"
    command("convert", trained / "run", folder)  # which knows no training rows
    capsys.readouterr()
    command("evaluate", "--model", folder, "--data", path)
    said = capsys.readouterr().out
    assert "no baseline: it is fitted to training rows" in said and "majority" not in said


def test_evaluate_names_all_unknown_labels(trained, capsys, tmp_path):
    spelled = [row | {"class": row["class"].upper()} for row in rows(12, seed=5)]
    upper = write(tmp_path / "upper.csv", spelled)
    with pytest.raises(SystemExit):
        command("evaluate", "--model", trained / "run", "--data", upper)
    said = capsys.readouterr().err
    counts = collections.Counter(row["class"] for row in spelled)
    named = ", ".join(f"{name!r} ({count})" for name, count in counts.most_common())
    assert f"2 labels are in no training row: {named}." in said and "fold_labels=True" in said


def test_evaluate_and_predict(trained, capsys, tmp_path, monkeypatch):
    told = evaluated(capsys, trained / "run", trained / "test.csv")
    assert told["accuracy"] > 0.9 and told["examples"] == 40
    assert 0.5 <= told["baseline"]["majority class of the training rows"] < 0.9
    classes = told["breakdown"]["scores per class"]
    assert [one["class"] for one in classes] == ["bad", "good"]
    assert sum(one["support"] for one in classes) == 40
    matrix = told["breakdown"]["confusion matrix"]
    right = matrix[0]["bad"] + matrix[1]["good"]
    assert right / 40 == pytest.approx(told["accuracy"])
    assert len(told["breakdown"]["worst errors"]) == 40 - right
    command("evaluate", "--model", trained / "run", "--data", trained / "test.csv")
    said = capsys.readouterr().out
    assert "majority class" in said and "precision" in said and "true \\ predicted" in said
    report = (trained / "run" / "report.html").read_text()
    assert "confusion matrix" in report and "scores per class" in report
    known = list(rows(21, seed=2))
    new = ({"id": i, "sentence": row["sentence"]} for i, row in enumerate(known))
    # rows without labels have no scores, and need no libraries
    monkeypatch.setattr(Classification, "scores", None)
    found = predicted(trained / "run", write(tmp_path / "new.csv", new), tmp_path / "out.csv")
    added = ["prediction", "probability_bad", "probability_good"]
    assert list(found[0]) == ["id", "sentence", *added]
    assert [row["id"] for row in found] == [str(i) for i in range(21)], "the order of the rows"
    right = [row["prediction"] == due["class"] for row, due in zip(found, known, strict=True)]
    assert np.mean(right) > 0.9
    for row in found:
        assert float(row["probability_bad"]) + float(row["probability_good"]) == pytest.approx(1)


def test_published_weights_predict_the_same_and_say_their_labels(trained, tmp_path):
    command("convert", trained / "run", tmp_path / "published")
    config = json.loads((tmp_path / "published" / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "good"}
    assert config["problem_type"] == "single_label_classification"
    card = (tmp_path / "published" / "README.md").read_text()
    assert 'pipeline("text-classification", "published")' in card
    assert re.search(r"\| accuracy of majority class of the training rows \| \d\d\.\d% \|", card)
    assert "| class | precision | recall | F1 | support |\n|---|---|---|---|---|\n| `bad` |" in card
    outs = []
    for model in (trained / "run", tmp_path / "published"):
        one = open_trained(model, length=24)
        outs.append(one.evaluate(open_file(one, str(trained / "test.csv")))[1]["logits"])
    np.testing.assert_allclose(*outs, atol=1e-6)


def test_a_published_tokenizer_cuts_texts_as_the_run_did(tmp_path):
    words = TokenizerConfig(name="words", vocab_size=128)
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    tokenizer_training.train(words, ["a lovely day"] * 9).save(folder)
    model = build_model(bert.config("tiny", head="sequence_classification", vocab_size=128))
    trained = TrainedInputs(tokenizer.load(folder), length=24, labels=("bad", "good"))
    write_companions(tmp_path, model, like=trained)
    assert load_tokenizer(tmp_path).max_length == 24


def test_predictions_ignore_what_stands_where_the_label_is_to_be(trained, tmp_path, capsys):
    outs = []
    for label in ({}, {"class": -1}, {"class": ""}, {"class": "unheard of"}):  # -1: GLUE's tests
        given = [{"sentence": row["sentence"], **label} for row in rows(5, seed=3)]
        new = write(tmp_path / "new.csv", given)
        found = predicted(trained / "run", new, tmp_path / "out.csv")
        outs.append([(row["prediction"], row["probability_bad"]) for row in found])
    assert all(out == outs[0] for out in outs)
    bare = write(tmp_path / "x.csv", [{"sentence": "a"}])
    with pytest.raises(SystemExit):
        evaluated(capsys, trained / "run", bare)
    assert "name it with --columns=label=NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("labels", "comes_along"), [(["0", "1"], True), (["1", "2"], False), (["no", "yes"], False)]
)
def test_a_head_without_names_comes_along_for_classes_that_are_numbers(
    trained, tmp_path, labels, comes_along
):
    model, params = load_pretrained(trained / "run")
    save_pretrained(tmp_path / "unnamed", model, params, like=trained / "run")
    config = json.loads((tmp_path / "unnamed" / "config.json").read_text())
    names = {"id2label": {0: "LABEL_0", 1: "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}
    (tmp_path / "unnamed" / "config.json").write_text(json.dumps(config | names))
    loaded = load_pretrained(tmp_path / "unnamed", new_head=True, labels=labels)[1]
    kernels = (each["classifier"]["dense"]["kernel"] for each in (params, loaded))
    assert np.array_equal(*kernels) == comes_along


PAIR_INPUTS = {
    bert: ["input_ids", "token_type_ids", "attention_mask"],
    roberta: ["input_ids", "attention_mask"],
}


@pytest.mark.nightly
@pytest.mark.parametrize(("family", "names"), PAIR_INPUTS.items())
def test_published_weights_tell_transformers_whether_pairs_have_token_types(
    tmp_path, family, names
):
    texts = [f"{one} {two}" for one in GOOD for two in BAD]
    words = TokenizerConfig(name="byte_bpe", vocab_size=400)
    tokenizer_training.train(words, texts * 9).save(tmp_path)
    pairs = [{"premise": text, "hypothesis": text} for text in texts]
    write(tmp_path / "train.csv", [pair | {"label": str(i % 2)} for i, pair in enumerate(pairs)])
    head = "sequence_classification"
    model = family.config("tiny", **{**SIZES, "max_length": 64, "head": head})
    cfg = experiment(tmp_path, **{"data.tokenizer.path": str(tmp_path), "train.steps": 1})
    flaxformer_lite.run(dataclasses.replace(cfg, model=model), tmp_path / "run")
    command("convert", tmp_path / "run", tmp_path / "published")
    told = json.loads((tmp_path / "published" / "tokenizer_config.json").read_text())
    assert told["model_input_names"] == names


def test_errors_name_the_row_of_the_file_whichever_split_it_is_in(tmp_path):
    for broken in (3, 21, 38):
        table = [{"text": f"text {i}", "label": i % 2} for i in range(40)]
        table[broken]["label"] = ""
        write(tmp_path / "train.csv", table)
        message = rf"train.csv'?: row {broken + 1} has no label; remove it"
        with pytest.raises(ConfigError, match=message):
            open_dataset(experiment(tmp_path, **{"data.eval_fraction": 0.3}))


def test_a_new_head_on_a_body_that_has_none(trained, tmp_path, caplog):
    model, params = load_pretrained(trained / "run", head="none")
    save_pretrained(tmp_path / "body", model, params, like=trained / "run")
    with pytest.raises(ValueError, match=r"nothing is initialized.* let new_head=True make one"):
        load_pretrained(tmp_path / "body", head="sequence_classification")
    new = {"head": "sequence_classification", "new_head": True, "labels": ["x", "y", "z"]}
    fresh, made = load_pretrained(tmp_path / "body", **new)
    assert fresh.cfg.num_labels == 3 and made["classifier"]["dense"]["kernel"].shape == (32, 3)
    assert "new parameters: classifier/dense/bias, classifier/dense/kernel" in caplog.text
    jax.tree.map(np.testing.assert_array_equal, made["encoder"], params["encoder"])
    kept, same = load_pretrained(trained / "run", new_head=True, labels=["bad", "good"])
    assert "new" not in caplog.text.split("before use")[-1] and kept.cfg.num_labels == 2
    others = load_pretrained(trained / "run", new_head=True, labels=["other", "names"])[1]
    assert np.any(others["classifier"]["dense"]["kernel"] != same["classifier"]["dense"]["kernel"])


START = {"train.steps": 1, "train.eval_every": 1}


@pytest.mark.nightly
def test_a_run_continues_another_with_its_labels(trained, tmp_path):
    start = {"train.init_from": str(trained / "run"), "data.eval_path": str(trained / "test.csv")}
    flaxformer_lite.run(experiment(trained, **START, **start), tmp_path / "same")
    first = tables.read_split(tmp_path / "same")[0]
    assert first["step"] == 0 and first["accuracy"] > 0.9, "the head came along"


@pytest.mark.nightly
def test_a_run_continues_another_with_new_labels(trained, tmp_path):
    write(tmp_path / "train.csv", [{"text": f"text {i}", "label": i % 3} for i in range(60)])
    start = {"train.init_from": str(trained / "run"), "data.eval_path": ""}
    flaxformer_lite.run(experiment(tmp_path, **START, **start), tmp_path / "three")
    assert read_config(tmp_path / "three").objective.labels == ("0", "1", "2")
    assert load_pretrained(tmp_path / "three")[0].cfg.num_labels == 3


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("text=bode", "and no 'bode'"),
        ("words=text", "reads text, second, label, not 'words'"),
        ("text", "must be like text=body,label=class"),
    ],
)
def test_columns_that_cannot_be_are_refused(tmp_path, columns, message):
    write(tmp_path / "train.csv", [{"body": "a", "label": 1}])
    with pytest.raises(ConfigError, match=message):
        open_dataset(experiment(tmp_path, **{"data.columns": columns}))


def test_an_unknown_label_of_held_out_rows_names_the_file(tmp_path):
    write(tmp_path / "train.csv", rows(20))
    dev = write(tmp_path / "dev.csv", [{"sentence": "a day", "class": "so-so"}])
    message = r"dev.csv'?: row 1:.*no training.*'so-so', only bad, good"
    with pytest.raises(ConfigError, match=message):
        open_dataset(experiment(tmp_path, **{"data.eval_path": str(dev)}))


def test_balanced_weights_pairs_and_the_end_of_decoders(tmp_path):
    table = [{"premise": "a", "hypothesis": "b", "label": "x" if i else "y"} for i in range(4)]
    path = str(write(tmp_path / "train.csv", table))
    fields = {"data.eval_path": path, "objective.weighting": "balanced"}
    data = open_dataset(experiment(tmp_path, **fields))
    assert data.objective.class_weights == (4 / 2 / 3, 4 / 2 / 1)
    example = data.example(0, 0, 0)
    assert example["targets"]["weights"] == np.float32(2.0)
    assert example["inputs"]["token_type_ids"].tolist()[:6] == [0, 0, 0, 1, 1, 0]
    assert data.objective.show(data.records, 0) == "'a | b' -> y (5 tokens)"
    sizes = {"vocab_size": 448, "head": "sequence_classification"}
    encoder, decoder, both = (family.config("tiny", **sizes) for family in (bert, gpt2, bart))
    assert data.objective.fit_model(encoder, data.tokenizer).pad_token_id is None
    assert data.objective.fit_model(decoder, data.tokenizer).pad_token_id == data.tokenizer.pad_id
    assert both.eos_token_id != data.tokenizer.eos_id
    assert data.objective.fit_model(both, data.tokenizer).eos_token_id == data.tokenizer.eos_id
    no_end = types.SimpleNamespace(frame=lambda skeleton: Frame())
    with pytest.raises(ConfigError, match=r"data\.tokenizer:.*no token"):
        data.objective.fit_model(both, no_end)


@pytest.mark.parametrize("count", [1500, 30])
def test_any_number_of_classes_with_several_rows_is_taken(count):
    rows = [{"text": "a", "label": f"intent {i % count}"} for i in range(2 * count)]
    assert len(Classification().fit(rows, {}).labels) == count


def test_free_text_and_numbers_are_no_classes():
    """Unless a page lists them."""
    texts = [{"text": "a", "label": f"a text of its own {i}"} for i in range(1500)]
    with pytest.raises(ConfigError, match=r"1500 different labels in 1500 rows.*text_to_text"):
        Classification().fit(texts, {})
    listed = Classification(labels=tuple(row["label"] for row in texts))
    assert len(listed.fit(texts, {}).labels) == 1500
    numbers = [{"text": "a", "label": i / 7} for i in range(100)]
    message = r"100 different labels, such as.*Numbers are predicted with .*kind=number\.$"
    with pytest.raises(ConfigError, match=message):
        Classification().fit(numbers, {})


def test_labels_and_tags_are_read_from_lists_of_json_and_a_listed_class_may_have_a_separator():
    labels = ['["b", "c, d"]', '["b"]', "[]"]
    several = [{"text": "a", "second": None, "label": label} for label in labels]
    task = Classification(kind="multiple").fit(several, {})
    assert task.labels == ("b", "c, d")
    assert tables.records(task, several).column("label").tolist() == [[1, 1], [1, 0], [0, 0]]
    tagged = {"tokens": '["New York", "now"]', "tags": '["LOC", "O"]'}
    assert Tagging().fit([tagged], {}).labels == ("LOC", "O")
    named = Classification(labels=("b", "b|c", "c"))
    assert named.fit([{"text": "a", "label": label} for label in named.labels], {}) == named
