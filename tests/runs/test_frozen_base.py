"""Runs over frozen weights: what a save holds, and that only the weights of the start are read."""

import json
import shutil

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import flaxformer_lite
from flaxformer_lite import load_pretrained, save_pretrained
from flaxformer_lite.__main__ import main
from flaxformer_lite.checkpoints import frozen_base
from flaxformer_lite.checkpoints.record import CheckpointError, read_record
from flaxformer_lite.checkpoints.workdir import read_newest_base
from flaxformer_lite.config import ConfigError, ExperimentConfig, from_config_dict
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.runs.start.initial_state import initial_state
from flaxformer_lite.runs.start.setup import prepare_experiment
from flaxformer_lite.storage.objects import Objects
from tests.examples import trials
from tests.runs import launched
from tests.training import tiny_runs

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
LORA = {"model.adapter.name": "lora", "model.adapter.rank": 2, "optimizer.learning_rate": 3e-2}
EVERY_STEP = {"train.steps": 4, "train.checkpoint_every": 1, "optimizer.schedule": "constant"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the workdir of a run that took no step, and its published weights."""
    folder = tmp_path_factory.mktemp("frozen")
    page = trials.experiment_dict(folder, **{"model.decoder_layers": 1})
    run = tiny_runs.untrained(from_config_dict(ExperimentConfig, page), folder / "base_run")
    main(["convert", str(run), str(folder / "base")])
    return folder


def experiment(folder, changes, base="base"):
    values = {"train.init_from": folder / base, **EVERY_STEP, **changes}
    return read_experiment(
        trials.experiment_dict(folder, **values), folder / "run", given=list(values)
    )


def train(folder, changes=LORA, base="base", run="run"):
    cfg = experiment(folder, changes, base)
    flaxformer_lite.run(cfg, folder / run)
    return folder / run


def copied(folder, tmp_path):
    """A copy, in which tests may change what they like."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return tmp_path


def write_other(folder, base="base"):
    """Writes the weights of `base` with another number into `other`."""
    model, params = load_pretrained(folder / base)
    up = params["decoder"]["layer_0"]["mlp"]["up"]
    up["kernel"] = up["kernel"].at[0, 0].add(1e-3)
    save_pretrained(folder / "other", model, params)


def params(path, **options):
    return jax.device_get(flatten_dict(load_pretrained(path, **options)[1], sep="/"))


def saved(run, name="checkpoints"):
    newest = max((run / name).iterdir(), key=lambda path: int(path.name))
    return {path for path in read_record(newest)["leaves"] if path.startswith("params/")}


def test_a_save_holds_what_is_trained_and_a_reader_lays_it_over_the_base(folder, tmp_path):
    folder = copied(folder, tmp_path)
    run = train(folder, LORA | {"train.best": "loss", "optimizer.ema": 0.5})
    for name in ("checkpoints", "best"):
        assert saved(run, name) and all("lora_" in path for path in saved(run, name))
    assert not (run / "base").exists()
    before = params(folder / "base")
    after = params(run)
    for path, leaf in before.items():
        np.testing.assert_array_equal(after[path], leaf, err_msg=path)
    assert len(after) == len(before) + 4
    assert any(leaf.any() for path, leaf in after.items() if path.endswith("lora_b"))


def test_a_stop_between_two_steps_changes_nothing(folder, tmp_path):
    folder = copied(folder, tmp_path)
    train(folder, LORA, run="whole")
    train(folder, LORA | {"train.steps": 2})
    run = train(folder, LORA)
    digests = [read_record(at / "checkpoints/4")["leaves"] for at in (run, folder / "whole")]
    assert digests[0] == digests[1]


# Each is stopped after step 2 and continued, and compared with a straight run of 4 steps.
CASES = {
    "a copy": LORA | {"train.base": "copy"},
    "another method": {"model.adapter.name": "dora", "model.adapter.rank": 2},
    "scales": {"model.adapter.name": "ia3"},
    "a frozen layer": {"optimizer.freeze": "('token_embed','position')"},
    "parts that are trained whole": LORA | {"model.adapter.trained": "('final_norm',)"},
    "few bits": LORA | {"model.quantize": "nf4"},
    "eight bits, scanned over two devices": LORA
    | {"model.quantize": "int8", "model.scan": True, "mesh.fsdp": 2},
    "an average": LORA | {"optimizer.ema": 0.9, "train.best": "loss"},
}


@pytest.mark.nightly
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_all_that_freezes_is_continued_bit_for_bit(folder, tmp_path, changes):
    folder = copied(folder, tmp_path)
    train(folder, changes, run="whole")
    train(folder, changes | {"train.steps": 2})
    run = train(folder, changes)
    digests = [read_record(at / "checkpoints/4")["leaves"] for at in (run, folder / "whole")]
    assert digests[0] == digests[1]
    held = {path.removeprefix("params/") for path in saved(run)}
    everything = params(run)
    assert held < set(everything)
    assert ("decoder/layer_0/mlp/up/kernel" in held) == ("optimizer.freeze" in changes)
    assert (run / "base").exists() == ("train.base" in changes)


def test_a_base_that_moved_is_accepted_and_another_is_refused(folder, tmp_path, capsys):
    folder = copied(folder, tmp_path)
    run = train(folder, LORA | {"train.steps": 2})
    before = params(run)
    (folder / "base").rename(folder / "moved")
    with pytest.raises(ConfigError, match=r"run: its frozen weights are .*base, .*base=FOLDER"):
        params(run)
    for path, leaf in params(run, base=folder / "moved").items():
        np.testing.assert_array_equal(before[path], leaf, err_msg=path)
    with pytest.raises(ConfigError, match=r"frozen weights cannot be read .*base"):
        train(folder)
    write_other(folder, "moved")
    said = r"other: decoder/layer_0/mlp/up/kernel is not what the run was trained over"
    with pytest.raises(CheckpointError, match=said):
        params(run, base=folder / "other")
    with pytest.raises(CheckpointError, match=said):
        train(folder, base="other")
    model, longer = load_pretrained(folder / "moved", max_length=96)
    save_pretrained(folder / "longer", model, longer)
    with pytest.raises(
        CheckpointError, match=r"longer: embed/position/position is not .*\[96, 32\]"
    ):
        train(folder, base="longer")
    train(folder, base="moved")
    assert json.loads((run / "base.json").read_text())["source"] == str(folder / "moved")
    assert read_record(run / "checkpoints/4")["step"] == 4
    assert params(run)
    shutil.rmtree(folder / "moved")
    main(["convert", "--adapter", str(run), str(folder / "adapter")])  # the factors need no base
    with pytest.raises(SystemExit):
        main(["generate", "--model", str(run), "--prompt", "one"])
    assert "base=FOLDER" in capsys.readouterr().err


def test_a_base_that_is_a_run_is_copied(folder, tmp_path):
    folder = copied(folder, tmp_path)
    run = train(folder, LORA | {"train.steps": 1}, base="base_run")
    before = params(run)
    shutil.rmtree(folder / "base_run")
    train(folder, base="base_run")
    assert params(run).keys() == before.keys()
    shutil.rmtree(run / "base")
    with pytest.raises(CheckpointError, match=r"run/base: missing; it holds the frozen weights"):
        params(run)


def test_a_copy_that_is_damaged_and_a_folder_of_other_weights_are_refused(folder, tmp_path):
    folder = copied(folder, tmp_path)
    run = train(folder, LORA | {"train.steps": 1, "train.base": "copy"})
    write_other(folder)
    with pytest.raises(CheckpointError, match=r"other: .* is not what the run was trained over"):
        train(folder, base="other")
    assert json.loads((run / "base.json").read_text())["source"] == str(folder / "base")
    shutil.rmtree(folder / "base")
    (folder / "other").rename(folder / "base")
    begun = prepare_experiment(experiment(folder, LORA)).with_base(read_newest_base(run))
    with pytest.raises(CheckpointError, match=r"base: .*up/kernel is not what"):
        begun.recreate_state()
    for part in (run / "base/0/state/d").iterdir():
        part.write_bytes(part.read_bytes()[:-1])
    said = r"run/base: cannot be read .*; it holds the frozen weights"
    with pytest.raises(CheckpointError, match=said):
        train(folder)
    with pytest.raises(CheckpointError, match=said):
        params(run)


def test_weights_that_lack_a_leaf_are_refused():
    leaf = ["float32", [2], "0123456789abcdef"]
    base = frozen_base.Base("base", "base", "reference", {"a": leaf, "b": leaf})
    with pytest.raises(
        CheckpointError, match=r"base: b is not .*\(float32\[2\] 01234567, now absent"
    ):
        base.check({"a": leaf}, "base", needed=["a", "b"])
    with pytest.raises(CheckpointError, match=r"base: c is not .*\(absent, now float32"):
        base.check({"a": leaf, "c": leaf}, "base")


def test_a_run_that_saved_all_weights_goes_on_as_it_was(folder, tmp_path):
    folder = copied(folder, tmp_path)
    cfg = experiment(folder, LORA)
    run = tiny_runs.untrained(
        cfg, folder / "run", lambda program: initial_state(program, cfg.train.init_from)
    )
    everything = saved(run)
    train(folder)
    assert saved(run) == everything
    assert not (run / frozen_base.FILE).exists()


def test_a_description_of_other_weights_is_refused(folder, tmp_path):
    folder = copied(folder, tmp_path)
    run = train(folder, LORA | {"train.steps": 1})
    described = json.loads((run / "base.json").read_text())
    described["leaves"].popitem()
    (run / "base.json").write_text(json.dumps(described))
    with pytest.raises(CheckpointError, match=r"base.json: does not describe the weights"):
        train(folder)
    (run / "base.json").unlink()
    with pytest.raises(CheckpointError, match=r"base\.json"):
        params(run)


@pytest.mark.nightly
def test_a_table_that_grew_is_saved_with_the_factors(tmp_path):
    tokenizer = {"data.tokenizer.name": "byte_bpe", "data.tokenizer.vocab_size": 448}
    page = trials.experiment_dict(tmp_path, **{"model.decoder_layers": 1}, **tokenizer)
    run = tiny_runs.untrained(from_config_dict(ExperimentConfig, page), tmp_path / "base_run")
    main(["convert", str(run), str(tmp_path / "base")])
    run = train(tmp_path, LORA | {"data.tokenizer.add": "('<a>','<b>')"})
    whole = {path for path in saved(run) if "lora_" not in path}
    assert whole == {"params/token_embed/embedding"}
    assert len(params(run)["token_embed/embedding"]) == 450


@pytest.mark.nightly
@pytest.mark.parametrize("kept", ["reference", "copy"])
def test_two_processes_save_and_continue_over_shards_of_the_base(folder, tmp_path, kept):
    folder = copied(folder, tmp_path)
    settings = {**trials.SMALL, **EVERY_STEP, **LORA, "mesh.fsdp": 4, "train.base": kept}
    settings |= {"train.init_from": folder / "base", "model.decoder_layers": 1}
    for steps in (2, 4):
        port = launched.free_port()
        with launched.pair(
            folder, folder / "run", settings | {"train.steps": steps}, port
        ) as started:
            for _, err, code in launched.outputs(started):
                assert code == 0, err
    run = train(folder, LORA | {"mesh.fsdp": 4}, run="alone")
    two, one = (read_record(at / "checkpoints/4") for at in (folder / "run", run))
    assert two["leaves"].keys() == one["leaves"].keys()
    assert two["base"] == one["base"]
    assert params(folder / "run")


@pytest.mark.nightly
@pytest.mark.parametrize("kept", ["reference", "copy"])
def test_a_run_in_a_store_over_weights_in_a_store(folder, tmp_path, bucket, kept):
    folder = copied(folder, tmp_path)
    published = f"{bucket.url}/{kept}/published"
    main(["convert", str(folder / "base"), published])
    workdir = f"{bucket.url}/{kept}/run"
    for steps in (2, 4):
        values = {"train.init_from": published, **EVERY_STEP, **LORA}
        values |= {"train.steps": steps, "train.base": kept}
        page = trials.experiment_dict(folder, **values)
        flaxformer_lite.run(read_experiment(page, workdir, given=list(values)), workdir)
    train(folder, run="straight")
    after = params(workdir)
    for path, leaf in params(folder / "straight").items():
        np.testing.assert_array_equal(after[path], leaf, err_msg=path)
    names = Objects(workdir).names()
    assert any(name.startswith("base/") for name in names) == (kept == "copy")
    assert "base.json" in names
