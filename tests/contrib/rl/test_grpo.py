"""Answers that are drawn, rewarded and learned from."""

import dataclasses
import json
import math
import random
import re
import shutil
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite import __main__ as door
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.rl import rollout_stepper
from flaxformer_lite.contrib.rl.call_reward import call_reward
from flaxformer_lite.contrib.rl.objectives.grpo import Grpo, Policy
from flaxformer_lite.contrib.rl.policy_gradient import compute_advantages, compute_token_losses
from flaxformer_lite.contrib.rl.sampler import draw_continuations
from flaxformer_lite.nn.adapters.lora import LoraConfig
from flaxformer_lite.runs import replay
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.training.optimizer import schedule
from tests.objectives import tables
from tests.runs.test_loop import leaves_of

BARE = "{{ messages[0].content }}="  # a template of the prompt alone
LLAMA = tables.tiny_llama(32)


# --- the equations


def test_advantages_of_groups():
    rewards = np.asarray([[1, 0, 0, 3], [2, 2, 2, 2]], np.float32)
    plain = [0, -1, -1, 2]
    std = math.sqrt((0 + 1 + 1 + 4) / 3)
    due = {"none": plain, "std": np.asarray(plain) / (std + 1e-4)}
    due["leave_one_out"] = [1 - 3 / 3, 0 - 4 / 3, 0 - 4 / 3, 3 - 1 / 3]
    for normalize, first in due.items():
        found = compute_advantages(jnp.asarray(rewards), normalize=normalize)
        np.testing.assert_allclose(found[0], first, rtol=1e-6)
        assert not np.any(found[1]), "equal rewards say nothing"
        thirds = jnp.full((1, 3), 0.1, jnp.float32)  # whose mean is rounded
        assert not np.any(compute_advantages(thirds, normalize=normalize))


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_the_loss_of_tokens_is_that_of_the_papers(ratio):
    rng = np.random.default_rng(0)
    new, old, reference = -np.abs(rng.normal(size=(3, 4, 5))).astype(np.float32)
    advantages = np.asarray([1.0, -1.0, 0.5, 2.0], np.float32)
    mask = np.arange(5)[None] < np.asarray([5, 3, 0, 1])[:, None]
    options = {"ratio": ratio, "clip_low": 0.1, "clip_high": 0.3, "kl": 0.04}
    arrays = map(jnp.asarray, (new, old, advantages, mask, reference))
    found = compute_token_losses(*arrays, **options)
    for i in range(4):
        ratios = np.exp(new[i] - old[i])
        if ratio == "sequence" and mask[i].any():
            ratios[:] = math.exp((new[i] - old[i])[mask[i]].mean())
        for t in np.flatnonzero(mask[i]):
            clipped = min(max(ratios[t], 0.9), 1.3)
            gap = reference[i, t] - new[i, t]
            divergence = math.exp(gap) - gap - 1
            due = -min(ratios[t] * advantages[i], clipped * advantages[i]) + 0.04 * divergence
            np.testing.assert_allclose(found.loss[i, t], due, rtol=1e-5)
            np.testing.assert_allclose(found.divergence[i, t], divergence, rtol=1e-4)
            is_clipped = clipped * advantages[i] < ratios[t] * advantages[i]
            assert bool(found.is_clipped[i, t]) == is_clipped
    assert np.isfinite(found.loss).all()


REFERENCE = json.loads((Path(__file__).parent / "grpo.json").read_text())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given(Grpo):
    """With log-probabilities for outputs."""

    def _log_probs(self, projection, labels_NT, chunks=4):
        return projection


def given(name, update):
    """A case of trl: its arrays, the task and the inputs of its loss."""
    case = REFERENCE[name]
    arrays = {key: np.asarray(case[key], np.float32) for key in case if key != "options"}
    length = arrays["new"].shape[1]
    task = Given(group=4, answer_length=length, **case["options"])
    answers = arrays["mask"].astype(np.int32).reshape(-1, 4, length)
    inputs = {
        "labels": answers,
        "answers": answers,
        "log_probs": arrays["old"].reshape(answers.shape),
        "rewards": arrays["rewards"].reshape(-1, 4),
        "update": np.full(len(answers), update, np.int32),
    }
    return arrays, task, {key: jnp.asarray(x) for key, x in inputs.items()}


@pytest.mark.parametrize("name", REFERENCE)
def test_losses_and_gradients_are_those_of_trl(name):
    arrays, task, inputs = given(name, int(name != "first update"))
    targets = {"weights": jnp.asarray(task._weights(np.asarray(inputs["answers"])))}
    reference = arrays["reference"] if task.kl else None

    @jax.jit
    def loss(new):
        return task.loss(Policy(new, reference, inputs), targets, chunks=1).mean()

    value, gradient = jax.value_and_grad(loss)(arrays["new"])
    np.testing.assert_allclose(value, arrays["loss"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, arrays["gradient"], rtol=1e-5, atol=1e-6)
    assert np.any(gradient)


def test_the_ratio_of_the_first_update_is_one_whatever_was_computed_before():
    """Two programs' log-probabilities of the same weights may differ in the last bit."""
    arrays, task, inputs = given("grpo", 0)
    targets = {"weights": jnp.ones((len(inputs["answers"]), 4))}
    sums = task.loss(Policy(jnp.asarray(arrays["new"]), None, inputs), targets, chunks=1)
    advantages = compute_advantages(inputs["rewards"], normalize="std").reshape(-1)
    np.testing.assert_allclose(sums.loss["weights"], -advantages.sum(), atol=1e-6)
    assert float(sums.metrics["clipped"][0]) == 0 and float(sums.metrics["drift"][0]) > 0


def test_all_updates_of_a_step_have_one_rate():
    cfg = tables.OptimizerConfig(learning_rate=1.0, warmup_steps=2, schedule="linear")
    steps = np.arange(6)
    each = np.asarray(schedule(cfg, 6)(steps))
    np.testing.assert_array_equal(schedule(cfg, 6, 3)(np.arange(18)), np.repeat(each, 3))


# --- rewards


def records_of(*written, **columns):
    same = {"prompt": "why?", "most_tokens": 10, "cut": False, **columns}
    return [{"written": text, "tokens": len(text), **same} for text in written]


NUMBER = {"type": "integer", "enum": [1, 2]}
LIST = {"type": "array", "items": {"enum": ["x"]}}
OBJECT = {"type": "object", "required": ["a"]}
SCHEMA = OBJECT | {"properties": {"a": NUMBER, "b": LIST}}
RIGHT = ('{"a": 1}', '{"a": 2, "b": ["x"]}')
WRONG = ('{"a": 0}', '{"a": true}', '{"a": 2, "b": ["y"]}', '{"a": 2.5}')
WRITTEN = dict.fromkeys(RIGHT, 1) | dict.fromkeys(WRONG, 0.5)
CLOSED = OBJECT | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("name", "columns", "due"),
    [
        ("exact_match", {"answer": " 12"}, {"12": 1, "12 ": 1, "1": 0, "": 0}),
        ("exact_match", {"answer": 12}, {"12": 1, "12.0": 0}),
        ("regex", {"pattern": r"^\d+$"}, {"12": 1, "a1": 0}),
        ("length", {}, {"": 0, "12345": -0.5}),
        ("json_schema", {"schema": CLOSED}, {"{}": 0.5, "{": 0, "[1]": 0.5, '{"a": 1}': 0.5}),
        ("json_schema", {"schema": json.dumps(SCHEMA)}, WRITTEN),
    ],
)
def test_rewards(name, columns, due):
    found = call_reward(name, records_of(*due, **columns), 10)
    assert found.dtype == np.float32 and found.tolist() == list(due.values())


FAULTY = f"{__name__}:faulty"


def faulty(records):
    """Replaced in each test."""


def fails(error, letter=""):
    def score(records):
        if any(letter in record["written"] for record in records):
            raise error

    return score


def is_nan(records):
    return [math.nan if record["written"] == "b" else 0.0 for record in records]


def empties(records):
    for record in records:
        record.clear()
    return [math.nan] * len(records)


def hangs_alone(records):
    if len(records) == 1:
        time.sleep(60)
    raise ValueError("full")


def holds_on(records):
    """An expression that Python's `re` is busy with for longer than anyone waits."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def takes_all(records):
    try:
        time.sleep(60)
    except Exception:
        return []


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (
            fails(KeyError("no such letter"), "b"),
            r"raised KeyError: 'no such letter' \(for 2 of 3 answers, the first.*'b' to 'why",
        ),
        (fails(OSError("no server.")), r"raised OSError: no server \(for 3 of 3"),
        (fails(SystemExit("bye")), r"raised SystemExit: bye \(for 3 of 3 answers"),
        (hangs_alone, r"raised ValueError: full \(for 3 answers at once; .*, for none within 0.2"),
        (
            is_nan,
            r"is nan \(float\) for 2 of 3 answers, the first of them 'b' to 'why\?'; return a",
        ),
        (lambda _: [None] * 3, r"is None \(NoneType\) for 3 of 3 answers, the first of them 'a'"),
        (
            lambda _: [1e300] * 3,
            r"is 1e\+300 \(float\) for 3 of 3 answers, .*; return a number from -1e\+15 to 1e\+15",
        ),
        (lambda _: ["1.0"] * 3, r"is 1.0 \(str\) for 3 of 3 answers"),
        (lambda _: [1.0] * 2, r"returned a list of shape \(2,\) for 3 answers; return one number"),
        (lambda records: (1.0 for _ in records), r"returned a generator of shape \(\) for 3"),
        (lambda _: time.sleep(60), r"took more than objective.reward_seconds=0.2 for 3 answers"),
        (holds_on, r"took more than objective.reward_seconds=0.2"),
        (takes_all, r"took more than objective.reward_seconds=0.2"),
    ],
)
def test_what_goes_wrong_in_a_reward_is_one_sentence(monkeypatch, score, message):
    monkeypatch.setattr(f"{__name__}.faulty", score)
    with pytest.raises(ConfigError, match=f"reward {FAULTY}: {message}"):
        call_reward(FAULTY, records_of("a", "b", "b"), 0.2)


def test_a_reward_that_changes_its_records_changes_no_other(monkeypatch):
    monkeypatch.setattr(f"{__name__}.faulty", empties)
    asked = records_of("a", "b")
    with pytest.raises(ConfigError, match=r"is nan .* for 2 of 2 answers, the first of them 'a'"):
        call_reward(FAULTY, asked, 10)
    assert asked == records_of("a", "b")


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("exact_match", {}, "the row has no answer; name its column"),
        ("regex", {}, "there is no pattern; give the table a column pattern, or set"),
        ("regex", {"pattern": "("}, "raised error: missing \\), unterminated"),
        ("json_schema", {}, "there is no JSON schema"),
        ("json_schema", {"schema": {"type": "objekt"}}, "the JSON schema is none: 'objekt'"),
        ("json_schema", {"schema": {"$ref": "http://here/x"}}, "Unresolvable: http://here/x"),
    ],
)
def test_what_a_reward_lacks_is_said(name, columns, message):
    with pytest.raises(ConfigError, match=f"reward {name}: .*{message}"):
        call_reward(name, records_of("1", **columns), 10)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rewards": ()}, "rewards=.*name at least one"),
        ({"rewards": ("exact_mach",)}, "did you mean 'exact_match'"),
        ({"reward_weights": (1.0, 2.0)}, "one for each of the rewards exact_match"),
        ({"group": 1}, "group=1: must be at least 2"),
        ({"kl": 0.1}, "kl=0.1, kl_model='': a divergence is from a model; set both"),
        ({"reward_options": "[]"}, "must be a JSON object"),
        ({"clip_low": 1.0}, "clip_low=1.0"),
        ({"score_rows": 0}, "score_rows=0: a run is judged by its rewards of held-out answers"),
    ],
)
def test_options_that_cannot_be(fields, message):
    with pytest.raises(ConfigError, match=message):
        Grpo(**fields)


# --- runs


def letters(count=24):
    """Prompts of two letters, which the answer repeats."""
    rng = random.Random(0)
    words = ["".join(rng.choice("ab") for _ in range(2)) for _ in range(count)]
    return [{"prompt": word, "answer": word, "hint": word[0]} for word in words]


def likes_letters(records):
    """The share of every second character, of those by the hint of the row: a reward from
    outside."""
    scores = []
    for record in records:
        good = sum(ord(letter) % 2 == ord(record["hint"]) % 2 for letter in record["written"])
        scores.append(good / record["most_tokens"])
    return scores


STEPS = range(100)
LIKES = f"{__name__}:likes_letters"


def config(folder, *, steps=4, train=None, rows=None, model=LLAMA, **fields):
    fields = {"group": 4, "answer_length": 3, "template": BARE, "rewards": (LIKES,)} | fields
    task = Grpo(score_rows=8, **fields)
    cfg = tables.experiment(folder, model, task, rows or letters(), steps=steps, length=12)
    options = {"log_every": 1, "eval_every": steps, "checkpoint_every": 2, "keep": 9}
    options |= {"eval_batches": 1, "batch_size": 4} | (train or {})
    return dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, **options))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    cfg = config(folder, updates=2, rewards=(LIKES, "length"), reward_weights=(1.0, 0.5))
    flaxformer_lite.run(cfg, folder / "run")
    return cfg, folder / "run"


def test_a_run_records_what_it_drew(finished):
    _, folder = finished
    collected = metrics.read_collected(folder, STEPS)
    assert sorted(collected) == [1, 2, 3, 4]
    for record in tables.read_split(folder, "train"):
        own = collected[record["step"]]
        total = np.asarray(own["rewards"][LIKES]) + 0.5 * np.asarray(own["rewards"]["length"])
        assert record["reward"] == pytest.approx(total.mean(), abs=1e-6)
        assert record["ratio_gap"] < 1e-5, "drawn with caches and read whole"
        assert record["cut"] == np.mean(own["cut"])
        assert record["learning_rate"] == pytest.approx(4e-3 * record["step"] / 20)
        assert np.shape(own["written"]) == (4, 4) and record["grad_norm"] > 0
    held = tables.read_split(folder)
    assert [r["step"] for r in held] == [0, 4] and all("reward" in r for r in held)


def test_a_run_that_was_stopped_ends_bit_equal(finished, tmp_path):
    cfg, folder = finished
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "4")
    with (tmp_path / "run" / metrics.COLLECTED).open("ab") as file:
        file.write(b'{"step": 5, "rewards": {"len')
    flaxformer_lite.run(cfg, tmp_path / "run")
    assert leaves_of(tmp_path / "run", 4) == leaves_of(folder, 4)
    assert metrics.read_collected(tmp_path / "run", STEPS) == metrics.read_collected(folder, STEPS)


def test_a_step_is_shown_again(finished, capsys):
    _, folder = finished
    door.main(["steps", "--workdir", str(folder), "--at", "4", "--run", "--allow-plugins"])
    again = capsys.readouterr()
    assert "loss and grad_norm equal the records of" in again.out and "bit for bit" in again.out
    assert "notice" not in again.err
    door.main(["steps", "--workdir", str(folder), "--at", "4", "--allow-plugins"])
    shown = capsys.readouterr().out
    lines = [line.strip() for line in shown.splitlines() if "advantage" in line]
    assert len(lines) == 16 and all(line in again.out for line in lines)
    assert again.out.count("of its tokens") == 16 and "of its tokens" not in shown


NOW = []


def is_a_clock(records):
    NOW.append(len(NOW))
    return [float(NOW[-1] + i % 2) for i in range(len(records))]


def test_a_reward_that_is_no_function_of_its_arguments_is_named(tmp_path):
    cfg = config(tmp_path, rewards=("length", f"{__name__}:is_a_clock"), steps=2)
    flaxformer_lite.run(cfg, tmp_path / "run")
    point = replay.before_step(tmp_path / "run", 2, allow_plugins=True)
    assert any("is_a_clock gave the same answers of step 1 other" in n for n in point.notices)
    assert not any("reward length" in notice for notice in point.notices)


@pytest.mark.nightly
def test_a_reward_that_fails_ends_the_run_and_loses_nothing(tmp_path, monkeypatch):
    cfg = config(tmp_path)
    monkeypatch.setattr(f"{__name__}.likes_letters", is_nan_at_last(3))
    message = r"step 3: reward .*likes_letters: is nan .float. for 1 of 16 answers"
    with pytest.raises(RunError, match=message):
        flaxformer_lite.run(cfg, tmp_path / "run")
    monkeypatch.undo()
    flaxformer_lite.run(cfg, tmp_path / "run")
    flaxformer_lite.run(cfg, tmp_path / "straight")
    assert leaves_of(tmp_path / "run", 4) == leaves_of(tmp_path / "straight", 4)


@pytest.mark.nightly
def test_a_reward_that_fails_for_held_out_answers_names_the_step(tmp_path, monkeypatch):
    likes = likes_letters
    held = lambda asked: None if 1 < len(asked) < 16 else likes(asked)  # noqa: E731
    monkeypatch.setattr(f"{__name__}.likes_letters", held)
    with pytest.raises(RunError, match=r"evaluation after step 0: reward .*: returned a NoneType"):
        flaxformer_lite.run(config(tmp_path, steps=2), tmp_path / "run")


def is_nan_at_last(step):
    calls = []
    likes = likes_letters

    def score(records):
        scores = likes(records)
        calls.append(len(records) == 16)
        if sum(calls) == step:
            scores[-1] = math.nan
        return scores

    return score


@pytest.mark.nightly
@pytest.mark.parametrize("left_out", [True, False])
def test_a_step_of_nothing_to_learn_is_counted(tmp_path, left_out):
    """None of this model's answers has an end, and none is right."""
    fields = {"drop_cut": True} if left_out else {"rewards": ("exact_match",)}
    flaxformer_lite.run(config(tmp_path, steps=1, **fields), tmp_path / "run")
    (record,) = tables.read_split(tmp_path / "run", "train")
    assert record["cut"] == 1 and record["grad_norm"] == 0
    assert record["equal_groups"] < 1 if left_out else record["equal_groups"] == 1


def test_rewards_are_tried_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr("flaxformer_lite.runs.loop.Trainer.train", lambda *_: pytest.fail())
    rows = [{"prompt": word} for word in ("a", "b", "ab", "ba")]
    cfg = config(tmp_path, rewards=("exact_match",), rows=rows)
    with pytest.raises(ConfigError, match=r"the row has no answer; .*answer=NAME \("):
        flaxformer_lite.run(cfg, tmp_path / "run")


def test_a_held_out_answer_is_rewarded_as_one_of_training(tmp_path):
    """With its spaces, and with its stop token counted."""
    task = Grpo(template=BARE, answer_length=3)
    records = tables.records(task, letters(4), length=12)
    ids = [records.tokenizer.encode(" a"), records.tokenizer.encode("abc")]
    written = task.write(lambda *_, **__: ids, records, np.arange(2))
    assert written["written"].tolist() == [" a", "abc"]
    counts, is_cut = task._counts(written["tokens"])
    assert counts.tolist() == [3, 3] and is_cut.tolist() == [False, True]


def test_prompts_without_room_for_an_answer_are_dropped():
    task = Grpo(template=BARE, answer_length=3)
    rows = [*letters(4), {"prompt": "a" * 9, "answer": "b", "hint": "a"}]
    records = tables.records(task, rows, length=12)
    assert records.table_rows.tolist() == [0, 1, 2, 3] and records.store.counts["dropped"] == 1
    message = r"none of the 1 rows .* raise data.length=12 to 13 or more"
    with pytest.raises(ConfigError, match=message):
        tables.records(task, rows[4:], length=12)


def test_dropout_is_refused(tmp_path):
    model = dataclasses.replace(LLAMA, dropout=0.1)
    with pytest.raises(ConfigError, match=r"model.dropout=0.1: answers are drawn without dropout"):
        flaxformer_lite.run(config(tmp_path, model=model), tmp_path / "run")


@pytest.mark.nightly
@pytest.mark.parametrize("devices", [2, 4])
def test_answers_and_updates_are_those_of_one_device(tmp_path, devices):
    """The loss is summed in another order, so that later answers are compared no more."""
    cfg = config(tmp_path, steps=2, train={"accumulate": 1, "checkpoint_every": 1})
    mesh = dataclasses.replace(cfg.mesh, data=devices)
    folders = [tmp_path / "one", tmp_path / "several"]
    for folder, each in zip(folders, (cfg, dataclasses.replace(cfg, mesh=mesh)), strict=True):
        flaxformer_lite.run(each, folder)
    one, several = (metrics.read_collected(folder, STEPS)[1] for folder in folders)
    assert one["written"] == several["written"] and one["rewards"] == several["rewards"]
    one, several = (tables.read_split(folder, "train")[0] for folder in folders)
    for name in ("loss", "grad_norm", "reward", "entropy"):
        assert one[name] == pytest.approx(several[name], rel=1e-4, abs=1e-6)


@pytest.mark.nightly
def test_an_adapter_learns_near_the_weights_that_it_starts_from(finished, tmp_path):
    """With a divergence from them, which is 0 before the first update."""
    _, folder = finished
    model = dataclasses.replace(LLAMA, adapter=LoraConfig(rank=2))
    fields = {"kl": 0.1, "kl_model": str(folder), "temperature": 0.7}
    cfg = config(tmp_path, steps=2, model=model, train={"init_from": str(folder)}, **fields)
    optimizer = tables.OptimizerConfig(learning_rate=0.1, warmup_steps=0, schedule="constant")
    flaxformer_lite.run(dataclasses.replace(cfg, optimizer=optimizer), tmp_path / "run")
    first, second = tables.read_split(tmp_path / "run", "train")
    assert first["divergence"] < 1e-9 < second["divergence"]
    assert first["ratio_gap"] < 1e-5, "at temperature 1, whatever that of the answers"


@pytest.mark.nightly
def test_a_sampler_that_draws_from_another_model_is_found(tmp_path, monkeypatch):
    def draw(*args, **settings):
        drawn = draw_continuations(*args, **settings)
        shifted = drawn[6].log_probs + np.asarray([0, 0.1, 0], np.float32)
        drawn[6] = drawn[6]._replace(log_probs=shifted)
        return drawn

    monkeypatch.setattr(rollout_stepper, "draw_continuations", draw)
    said = "step 1: the probability of token 2 of answer 3 to row 1 of the batch is 9.5e-02 of it"
    with pytest.raises(RunError, match=said):
        flaxformer_lite.run(config(tmp_path), tmp_path / "run")


@pytest.mark.nightly
def test_in_bfloat16_the_ratio_to_the_sampler_is_told(tmp_path):
    model = dataclasses.replace(LLAMA, dtype="bfloat16")
    flaxformer_lite.run(config(tmp_path, model=model, updates=2), tmp_path / "run")
    records = tables.read_split(tmp_path / "run", "train")
    assert all(r["ratio_gap"] >= r["mean_ratio_gap"] > 0 for r in records)
