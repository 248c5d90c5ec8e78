import dataclasses
import functools
import math
import shutil

import jax
import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite.data.table_examples import open_labelled
from flaxformer_lite.nn.adapters.lora import LoraConfig
from flaxformer_lite.objectives.tables.dpo import Dpo
from flaxformer_lite.runs.evaluate_file import open_file, open_trained
from flaxformer_lite.runs.start import reference
from tests.models.tiny import built, logits_of
from tests.objectives import tables
from tests.objectives.tables import answer, user
from tests.runs.test_loop import leaves_of
from tests.training import tiny_runs

LLAMA = tables.tiny_llama(128)
ROWS = [{"prompt": prompt, "chosen": "yes", "rejected": "never"} for prompt in "abcdefgh"]


def log_prob(model, params, ids, answers):
    """The log-probability of an answer, from whole logits of its conversation alone.

    What stands behind it changes nothing in a decoder, and makes all lengths one program.
    """
    row = np.zeros((1, 96), np.int32)
    row[0, : len(ids)] = ids
    logits = np.asarray(logits_of(model, params, input_ids=row)[0, : len(ids)], np.float64)
    each = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return sum(each[t - 1, ids[t]] for t in range(1, len(ids)) if answers[t])


@pytest.mark.parametrize("smoothing", [pytest.param(0.0, marks=pytest.mark.nightly), 0.2])
def test_the_loss_of_a_batch_is_equation_7(smoothing):
    """-log sigmoid(beta (log p(w) / p_ref(w) - log p(l) / p_ref(l))), each sequence by itself
    through the whole model."""
    task = Dpo(beta=0.3, label_smoothing=smoothing)
    model, params = built(dataclasses.replace(LLAMA, vocab_size=384))
    rows = [ROWS[0], {"prompt": "why is it?", "chosen": "no idea", "rejected": "so"}]
    start = np.asarray([[-7.0, -4.0], [-2.0, -9.0]], np.float32)
    records = dataclasses.replace(tables.records(task, rows, length=96), reference=start)
    batch = tables.stack(task, records)
    out = jax.jit(functools.partial(model.apply, method=task.outputs))(
        {"params": params}, batch["inputs"]
    )
    sums = task.loss(out, batch["targets"], chunks=3)

    by_model = functools.partial(log_prob, model, params)
    now = np.asarray(
        [[by_model(*side) for side in sides_of(records.pieces(i)[0])] for i in range(len(records))]
    )
    margin = 0.3 * ((now - start)[:, 0] - (now - start)[:, 1])
    right = np.log(1 / (1 + np.exp(-margin)))
    wrong = np.log(1 / (1 + np.exp(margin)))
    due = -(1 - smoothing) * right - smoothing * wrong
    np.testing.assert_allclose(sums.loss["weights"], due.sum(), rtol=1e-4)
    np.testing.assert_allclose(task.predictions(out)["log_probs"], now, rtol=1e-4)
    found = {name: float(total / weight) for name, (total, weight) in sums.metrics.items()}
    np.testing.assert_allclose(found["margin"], margin.mean(), rtol=1e-3)
    np.testing.assert_allclose(found["reward_accuracy"], (margin > 0).mean())


def test_of_conversations_only_the_last_answer_counts():
    task = Dpo()
    before = [user("a"), answer("b"), user("c")]
    sides = {"chosen": [*before, answer("yes")], "rejected": [*before, answer("no")]}
    whole = {"prompt": None, **sides}
    split = {"prompt": before, "chosen": [answer("yes")], "rejected": "no"}
    a, b = (tables.records(task, [row], length=160).pieces(0)[0] for row in (whole, split))
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert [int(answers.sum()) for _, answers in sides_of(a)] == [4, 3]
    assert task.prompt_and_reference(tables.records(task, [split], length=160), 0) == ("c", "yes")


@pytest.mark.parametrize("text", ['[{"name": "a"}]', "[\n  {}\n]", "[{ ..."])
def test_an_answer_may_be_json_of_its_own(text):
    row = {"prompt": "which", "chosen": text, "rejected": "none"}
    (_, chosen), _ = sides_of(tables.records(Dpo(), [row], length=160).pieces(0)[0])
    assert int(chosen.sum()) == len(text) + 1


def sides_of(record):
    """The ids and answers of the chosen and of the rejected side."""
    parts = (np.split(record[name], [record["second"]]) for name in ("ids", "answers"))
    return list(zip(*parts, strict=True))


def opened(tmp_path, rows, **how):
    cfg = tables.experiment(tmp_path, LLAMA, Dpo(), rows, steps=1, **how).data
    return open_labelled(cfg, Dpo(), "decoder")


def test_a_pair_with_a_side_without_answer_is_dropped(tmp_path):
    rows = [ROWS[0], {"prompt": "a" * 60, "chosen": "b", "rejected": "c"}]
    _, records, described = opened(tmp_path, rows, length=64)
    assert (
        records["train"].table_rows.tolist() == [0]
        and "2 rows dropped" in dict(described)["notice"]
    )


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_pair_of_which_either_side_is_cut_is_told(side, tmp_path):
    rows = [ROWS[0], ROWS[1] | {side: "long " * 30}]
    _, _, described = opened(tmp_path, rows, length=96)
    assert "2 examples cut" in dict(described)["notice"]  # of the training and held-out rows


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    model = dataclasses.replace(LLAMA, dropout=0.1)
    cfg = tables.experiment(folder, model, Dpo(answer_length=8), ROWS, steps=20, length=80)
    cfg = tiny_runs.steps(cfg, 20, eval_every=20, checkpoint_every=10, keep=9)
    flaxformer_lite.run(cfg, folder / "run")
    return cfg, folder


@pytest.mark.nightly
def test_a_run_begins_at_its_reference_and_learns_the_preference(finished):
    before, *_, after = tables.read_split(finished[1] / "run")
    assert before["margin"] == pytest.approx(0, abs=1e-5)
    assert before["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert after["reward_accuracy"] == 1 and after["margin"] > 0.5 and after["loss"] < 0.5
    assert after["chosen_reward"] > after["rejected_reward"]


@pytest.mark.nightly
def test_the_reference_of_matrices_in_few_bits_are_these_matrices(finished, tmp_path):
    cfg, folder = finished
    model = dataclasses.replace(cfg.model, quantize="nf4", adapter=LoraConfig(rank=2))
    train = dataclasses.replace(cfg.train, init_from=str(folder / "run"), steps=10)
    flaxformer_lite.run(dataclasses.replace(cfg, model=model, train=train), tmp_path / "run")
    before, after = tables.read_split(tmp_path / "run")
    assert before["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert after["loss"] < before["loss"]


@pytest.mark.nightly
@pytest.mark.parametrize("kept", [True, False])
def test_a_resumed_run_has_the_same_reference_also_if_its_file_is_gone(finished, tmp_path, kept):
    cfg, folder = finished
    shutil.copytree(folder / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "20")
    if not kept:
        (tmp_path / "run" / reference.FILE).unlink()
    flaxformer_lite.run(cfg, tmp_path / "run")
    assert leaves_of(tmp_path / "run", 20) == leaves_of(folder / "run", 20)


def test_new_rows_are_answered_but_have_no_rewards(finished, tmp_path):
    """evaluate and predict do not know what the starting weights say of them."""
    trained = open_trained(finished[1] / "run")
    data = open_file(trained, tables.write_rows(tmp_path / "new.jsonl", ROWS[:2]))
    found, predictions = trained.evaluate(data)
    assert not found and data.objective.baseline(data, {}) is None
    path = tables.write_rows(tmp_path / "prompts.jsonl", [{"prompt": "a"}])
    new = open_file(trained, path, predicts=True)
    told = new.objective.decode(trained.evaluate(new)[1], new.records)
    assert len(predictions["written"]) == 2 and isinstance(told[0]["prediction"], str)


def test_the_baseline_is_length(tmp_path):
    rows = [*ROWS[:3], {"prompt": "a", "chosen": "longest", "rejected": "no"}]
    records = opened(tmp_path, rows, length=96)[1]["eval"]
    records = dataclasses.replace(records, reference=np.zeros((4, 2), np.float32))
    due = ("preferring the longer answer", 0.25)
    assert Dpo().baseline(tables.data_of(records), {}) == due
