"""The recipes of launch/, with stand-ins for the programs of a cluster; `make slurm`, `make mpi`
and `make pods` run them."""

import math
import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from flaxformer_lite.config import ExperimentConfig, from_config_dict
from flaxformer_lite.pages import get_config
from flaxformer_lite.sharding.mesh import mesh_sizes
from tests.runs.launched import ROOT

FLAGS = [
    "--config=gpt2_xl",
    "--workdir=gs://bucket/a run",
    "--config.model.dropout_at=('embed','branch')",
    "--x=$HOME;`id`",
]


@pytest.fixture
def run(tmp_path):
    """Runs a script of launch/ with stand-ins, as name -> lines of bash: (exit code, stdout, each
    call of a stand-in, stderr)."""
    calls = tmp_path / "calls"

    def started(script, *words, **programs):
        for name, body in programs.items():
            path = tmp_path / name
            note = f'printf "%q " {name} "$@" >> {calls}; echo >> {calls}'
            path.write_text(f"#!/bin/bash\n{note}\n{body}\n")
            path.chmod(0o755)
        calls.touch()
        env = os.environ | {"PAUSE": "0", "SLURM_JOB_ID": "7"}
        env["PATH"] = f"{tmp_path}:{env['PATH']}"
        command = ["bash", ROOT / "launch" / script, *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        called = [shlex.split(line) for line in calls.read_text().splitlines()]
        return done.returncode, done.stdout, called, done.stderr

    return started


CREATE = "queued-resources create"
DELETE = "queued-resources delete"
ONCE = [CREATE, "tpu-vm scp", "tpu-vm ssh", "tpu-vm ssh", DELETE]


def test_a_dry_run_prints_commands_that_hand_on_every_flag(run):
    programs = {"gcloud": "exit 1", "python3": "exit 1"}
    code, said, called, _ = run("tpu_vm.sh", "--dry-run", "xl", *FLAGS, **programs)
    lines = [shlex.split(line) for line in said.splitlines()]
    assert code == 0 and not called
    assert [" ".join(line[3:5]) for line in lines[1:]] == ONCE
    (command,) = (word for word in lines[4] if word.startswith("--command="))
    _, _, job = command.partition("bash -c ")
    _, *words = shlex.split(shlex.split(job)[0].removesuffix("; echo $? > run.code"))
    assert words == ["-m", "flaxformer_lite", "train", "--stopped_code=75", *FLAGS]


def actions(called):
    gcloud = [words for words in called if words[0] == "gcloud" and words[4] != "describe"]
    return [" ".join(words[3:5]) for words in gcloud]


@pytest.mark.parametrize(
    ("looks", "fails"),
    [
        (
            "if [ -e preempted ]; then echo SUSPENDED; rm preempted; else echo ACTIVE; fi",
            "touch once preempted; exit 1",
        ),
        ("echo ACTIVE", "touch once; exit 75"),  # stopped, and the old slice is active
    ],
)
def test_a_preempted_slice_is_made_again_and_the_run_continues(run, looks, fails):
    gcloud = f"""
    case "$*" in
      *describe*) {looks} ;;
      *flaxformer_lite\\ train*) if [ ! -e once ]; then {fails}; fi ;;
    esac"""
    code, _, called, _ = run("tpu_vm.sh", "xl", *FLAGS, gcloud=gcloud, python3="")
    assert code == 0 and actions(called) == ONCE * 2


@pytest.mark.parametrize(("fails", "deleted"), [("train", True), ("create", False)])
def test_a_run_that_fails_is_not_repeated_and_no_slice_of_another_is_deleted(run, fails, deleted):
    gcloud = f'case "$*" in *{fails}*) exit 1 ;; *describe*) echo ACTIVE ;; esac'
    code, _, called, _ = run("tpu_vm.sh", "xl", "--config=gpt2_xl", gcloud=gcloud, python3="")
    assert code == 1 and (DELETE in actions(called)) == deleted
    assert actions(called).count(CREATE) == 1


COMING = ("ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "CREATING", "ACTIVE", "")
STATES = dict.fromkeys(COMING, "comes") | {  # of a queued resource, by Google's page
    "SUSPENDING": "again",
    "SUSPENDED": "again",
    "FAILED": "the request for xl has FAILED",
    "gone": "cannot describe xl",
}


@pytest.mark.parametrize("state", STATES)
def test_each_state_of_a_request_is_waited_out_or_ends_the_script(run, state):
    """The state is that of the first looks; the slice of the second request is there at once."""
    looks = 20 if state == "gone" else 2
    answer = "exit 1" if state == "gone" else f"echo {state}"
    gcloud = f"""
    echo >> looks
    case "$*" in
      *create*) echo >> creates; : > looks ;;
      *describe*) if [ $(wc -l < looks) -gt {looks} ] || [ $(wc -l < creates) -gt 1 ]
        then echo ACTIVE; else {answer}; fi ;;
    esac"""
    code, _, called, errors = run("tpu_vm.sh", "xl", *FLAGS, gcloud=gcloud, python3="")
    creates = actions(called).count(CREATE)
    due = STATES[state]
    if due in ("comes", "again"):
        assert code == 0 and not errors and creates == 1 + (due == "again")
    else:
        assert code == 1 and creates == 1 and due in errors
    assert actions(called).count(DELETE) == creates


WORKER = """
python=worker/venv/bin/python
mkdir -p worker/venv/bin
if [ ! -e $python ]; then
  echo '#!/bin/bash' > $python
  echo 'printf "%s\\n" "$@" >> started; sleep 1; echo trained; exit CODE' >> $python
fi
chmod +x $python
case "$*" in
  *describe*) echo ACTIVE ;;
  *run.log*) for word; do case "$word" in --command=*) command=${word#--command=} ;; esac; done
    if [ ! -e once ]; then touch once; LOST; fi
    HOME=$PWD/worker bash -c "$command" ;;
esac"""


@pytest.mark.parametrize("code", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_a_lost_connection_is_made_again_and_follows_the_same_run(run, tmp_path, code):
    """ssh ends with 255 while the run goes on; the next connection hands on its exit code."""
    lost = 'HOME=$PWD/worker timeout 0.3 bash -c "$command"; exit 255'
    gcloud = WORKER.replace("CODE", str(code)).replace("LOST", lost)
    ended, said, called, errors = run("tpu_vm.sh", "xl", *FLAGS, gcloud=gcloud, python3="")
    assert ended == code and "trained" in said
    assert "connection to xl is lost" in errors
    if code:
        assert (tmp_path / "xl.log").read_text().endswith(": trained\n") and "xl.log has" in errors
    assert (tmp_path / "worker/started").read_text().splitlines()[4:] == FLAGS, "once, each flag"
    assert actions(called).count(CREATE) == 1
    assert actions(called)[-1] == DELETE


# Each of these starts 16 devices a slice: a v5litepod-16, two nodes or pods of eight GPUs, 4x4.
RECIPES = [*sorted((ROOT / "launch").iterdir()), ROOT / "docs/clusters.md"]
DEVICES = 16
COMMAND = re.compile(
    r"(?:launch/|\btrain\b)[^`\n]*--config=gpt2_xl[^`\n]*(?:\n +--config\.[^\n]*)?"
)


def recipes():
    """Yields the flags of the config of each command for gpt2_xl, and its devices."""
    for file in RECIPES:
        text = file.read_text().replace("\\\n", " ")
        for number, command in enumerate(COMMAND.findall(text)):
            flags = re.findall(r"--config[.=][^\s\"'`]+", command)
            slices = 1 + ("--config.mesh.slices=2" in flags)
            yield pytest.param(flags, DEVICES * slices, id=f"{file.name}-{number}")


@pytest.mark.parametrize(("flags", "devices"), list(recipes()))
def test_the_flags_of_each_recipe_fit_the_devices_of_its_type(flags, devices):
    page = get_config("gpt2_xl")
    sizes = dict(re.findall(r"--config\.(mesh\.\w+)=(\d+)", " ".join(flags)))
    page.update_from_flattened_dict({name: int(size) for name, size in sizes.items()})
    config = from_config_dict(ExperimentConfig, page)
    sizes = mesh_sizes(config.mesh, devices)
    assert any(flag.startswith("--config.data.path=") for flag in flags)
    assert math.prod(sizes.values()) == devices
    assert sizes["fsdp"] >= 8, "the weights stay split"
    assert config.train.batch_size % (sizes["data"] * sizes["fsdp"]) == 0


SHRUNK = {  # the model and text, but neither mesh nor batch
    **dict.fromkeys(("model.d_model", "model.mlp_dim"), 64),
    **dict.fromkeys(("model.num_heads", "model.decoder_layers"), 2),
    **dict.fromkeys(("model.max_length", "data.length"), 16),
    **dict.fromkeys(("train.steps", "train.eval_batches"), 1),
    "model.vocab_size": 384,
    "data.tokenizer.name": "bytes",
}


@pytest.mark.nightly
@pytest.mark.parametrize(("flags", "devices"), list(recipes()))
def test_each_recipe_starts_on_simulated_devices(flags, devices, tmp_path):
    (tmp_path / "text.txt").write_text("one two three four five six seven\n" * 4000)
    fields = {**SHRUNK, "data.path": tmp_path / "text.txt", "data.cache": tmp_path / "cache"}
    flags = [*flags, *(f"--config.{name}={value}" for name, value in fields.items())]
    found = {**os.environ, "JAX_PLATFORMS": "cpu"}
    found["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    command = [sys.executable, "-m", "flaxformer_lite", "train", f"--workdir={tmp_path}/run"]
    done = subprocess.run([*command, *flags], cwd=ROOT, env=found, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "step 1/1" in done.stdout


@pytest.mark.parametrize(("code", "requeued"), [(75, True), (0, False), (1, False)])
def test_only_a_stopped_job_goes_back_into_the_queue(run, code, requeued):
    got, _, called, _ = run("slurm.sbatch", *FLAGS, srun=f"exit {code}", scontrol="")
    assert got == code and (["scontrol", "requeue", "7"] in called) == requeued
    assert called[0][:3] == ["srun", "flaxformer_lite", "train"]
    assert called[0][-len(FLAGS) :] == FLAGS


@pytest.mark.parametrize("name", ["jobset_gpu.yaml", "jobset_tpu.yaml"])
def test_flags_and_numbers_of_a_jobset_fit_together(name):
    document = yaml.safe_load((ROOT / "launch" / name).read_text())
    (job,) = document["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    flags = dict(re.findall(r"--([\w.]+)=(\S+)", container["args"][0]))
    ignored = spec["podFailurePolicy"]["rules"][1]["onExitCodes"]
    exits = flags["stopped_code"]
    assert ignored["values"] == [int(exits)] and ignored["containerName"] == container["name"]
    if "coordinator" in flags:
        assert flags["num_processes"] == str(spec["completions"])
        name = document["metadata"]["name"]
        assert flags["coordinator"].startswith(f"{name}-{job['name']}-0-0.{name}:")
    else:
        assert flags["config.mesh.slices"] == str(job["replicas"])
    assert spec["parallelism"] == spec["completions"]
