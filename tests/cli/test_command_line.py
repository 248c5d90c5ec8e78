"""Bad command lines: one line on stderr, exit code 2, no traceback; and the words that command
lines are made of."""

import logging
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flaxformer_lite.__main__ import main
from flaxformer_lite.cli import command_line, launch
from flaxformer_lite.runtime import invocation
from flaxformer_lite.runtime.processes import ALONE

ROOT = Path(__file__).parents[2]
CONFIG = "--config=gpt2_tiny"
# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")


@pytest.fixture
def handlers():
    """Training takes SIGINT and SIGTERM for itself."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def refused(handlers, capsys, monkeypatch, tmp_path):
    def run(*args):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(launch, "join", lambda **_: ALONE)  # jax has begun
        monkeypatch.setattr(sys, "dont_write_bytecode", True)  # beside a config file
        # the last file that ml_collections read
        monkeypatch.delitem(sys.modules, "config_config", raising=False)
        before = sorted(tmp_path.iterdir())
        with pytest.raises(SystemExit) as ended:
            main(["train", *args])
        said = capsys.readouterr()
        assert ended.value.code == command_line.BAD_INPUT and not said.out
        assert said.err.startswith("error: ") and said.err.count("\n") == 1
        assert sorted(tmp_path.iterdir()) == before
        return said.err

    return run


FLAGS = "workdir coordinator num_processes process_id peer_timeout"


@pytest.mark.parametrize("door", ["train.py", "-m flaxformer_lite train"])
def test_each_door_has_the_same_help_and_needs_no_jax(door):
    command = [sys.executable, "-X", "importtime", *door.split(), "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert f"{door} --config=gpt2_tiny --workdir=" in done.stdout
    assert all(f"--{name}" in done.stdout for name in FLAGS.split(" "))
    assert " jax\n" not in done.stderr and " numpy\n" not in done.stderr


X = "--workdir=x"
BEGUN = f"{CONFIG} {X}"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "--config is missing; for example --config=demo"),
        ("gpt2_tiny --config.seed=-1", " seed=-1: must not be negative"),  # a page by its name
        ("--config=gpt2", "--config=gpt2: no such page; did you mean 'gpt2_"),
        (f"--config=configs/gpt3.py {X}", "--config=configs/gpt3.py: no such file"),
        (f"--config=t5_v1_1:smal {X}", "_1:smal: t5: no preset 'v1_1_smal'; did you mean 'v1_1_s"),
        (f"--config=gpt2_xl:rope {X}", "get_config() takes 0 positional arguments but 1 was given"),
        (f"--config=small.gin {X}", "small.gin: gin files are not read; a page is"),
        (f"--lr=0.1 {X}", "did you mean --config.optimizer.learning_rate?"),
        ("--model=gpt2", "--model: no such flag; did you mean --config.train.init_from?"),
        (CONFIG, "--workdir is missing; for example --workdir=runs/demo"),
        (f"{CONFIG} --wrkdir=x", "--wrkdir: no such flag; did you mean '--workdir'?"),
        (f"{CONFIG} --workdir=az://bucket/x", "az://bucket/x: az:// is not read or written, only"),
        (f"{BEGUN} --peer-timeout=0", "--peer_timeout: 0: must be at least 5"),
        (f"{BEGUN} steps=3", "'steps=3' is not a flag; flags look like --config.train.steps=100."),
        (f"{BEGUN} --config.train.steps=many", ".train.steps=many: must be a whole number"),
        (f"{BEGUN} --config.model.scan=maybe", "=maybe: must be true or false, not 'maybe'"),
        (f"{BEGUN} --config.model.position=rope", "set one of them, like --config.model.position."),
        (f"{BEGUN} --config.optimizer.name=adm", "optimizers: no 'adm'; did you mean 'adamw'?"),
        (f"{BEGUN} --config.model.num_heads=3", " model.d_model=128, model.num_heads=3: the width"),
        (f"{BEGUN} --config.train.steps=0", "train.steps=0: a run takes one step or more"),
        (
            f"{BEGUN} --config.data.path=hf://user/text",
            " data on the hub is hf://datasets/ORG/NAME",
        ),
    ],
)
def test_mistakes_are_one_line(line, message, refused):
    assert message in refused(*line.split(" ") if line else ())


ADAPTER = "--config.model.adapter.name=lora"
RATE = "--config.optimizer.learning_rate"


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        (["--config=tag", "--config.optimizer.warmup_steps=5"], {"warmup_steps": 5}),
        (["--config=tag", "--config.optimizer.warmup_steps=0"], {"warmup_share": 0.0}),
        (["--config=demo", "--config.optimizer.warmup_share=0.2"], {"warmup_steps": 0}),
        (["--config=instruct", ADAPTER], {"learning_rate": 2e-4}),
        (["--config=dpo", ADAPTER], {"learning_rate": 2e-4}),
        (["--config=instruct", ADAPTER, f"{RATE}=3e-5"], {"learning_rate": 3e-5}),
        (["--config=gpt2_tiny", ADAPTER], {"learning_rate": 1e-3}),
        (["--config=instruct"], {"learning_rate": 2e-5}),
    ],
)
def test_what_a_command_line_implies_for_the_optimizer(flags, fields):
    optimizer = command_line.config(flags).optimizer
    assert {name: optimizer[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("trian.steps", "train.steps"),
        ("lr", "optimizer.learning_rate"),
        ("batch_size", "train.batch_size"),
        ("train.learning-rate", "optimizer.learning_rate"),
        ("position", "model.position.name"),
        ("warmup", "optimizer.warmup_share or --config.optimizer.warmup_steps"),
        ("warmup_ratio", "optimizer.warmup_share"),
        ("model.dmodel", "model.d_model"),
        ("model.num_layers", "model.decoder_layers or --config.model.encoder_layers"),
    ],
)
def test_an_unknown_field_is_answered_with_the_whole_path_of_the_one_it_means(
    wrong, meant, refused
):
    said = refused(CONFIG, X, f"--config.{wrong}=3")
    name = wrong.replace("-", "_")
    assert f"--config.{name}: no such field; did you mean --config.{meant}?" in said


RETYPED = """
from flaxformer_lite import pages

def get_config():
    config = pages.get_config("gpt2_tiny").unlock()
    with config.model.ignore_type():
        config.model.position = "rope"
    return config
"""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def get_config(:\n", r"--config=.*SyntaxError: invalid syntax"),
        ("def get_config(): open('/no/file')", r"--config=.*mine.py: OSError: .*'/no/file'"),
        ("x = 1\n", r"AttributeError: module .* has no attribute 'get_config'"),
        ("def get_config(): pass", r"get_config\(\) returns None, but must return a ConfigDict"),
        (RETYPED, r"position='rope': must be a section .*; set config.model.position.name"),
    ],
)
def test_a_config_file_that_fails_is_named(source, message, refused, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(source)
    assert re.search(message, refused(f"--config={path}", "--workdir=x"))


def test_ctrl_c_in_the_middle_of_an_import_ends_without_a_traceback(tmp_path):
    path = tmp_path / "slow.py"
    begun = tmp_path / "begun"
    path.write_text(f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(600)\n")
    args = [sys.executable, str(ROOT / "train.py"), f"--config={path}", "--workdir=x"]
    process = subprocess.Popen(
        args, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=600) == ("", "")
    assert process.returncode == -signal.SIGINT


def test_flags_and_fields_reach_the_run_in_either_spelling(handlers, monkeypatch):
    runs = []
    monkeypatch.setattr(launch, "main", lambda *args, **joining: runs.append((*args, joining)))
    given = "--config.train.batch-size 48 --config gpt2_tiny:rope --workdir a-b"
    joined = "--num-processes=2 --process_id 1 --coordinator=host:1"
    main(["train", *given.split(" "), *joined.split(" ")])
    ((config, workdir, joining),) = runs
    assert (config.train.batch_size, config.model.position.name, workdir) == (48, "rope", "a-b")
    due = {"coordinator": "host:1", "num_processes": 2, "process_id": 1, "start_timeout": 300}
    due |= {"peer_timeout": 60, "stopped_code": 0, "allow_plugins": False}
    assert joining == due


def test_libraries_may_log_again_after_a_run(handlers, monkeypatch, tmp_path):
    root = logging.getLogger()
    during = []
    before = root.level
    monkeypatch.setattr(launch, "main", lambda *_, **__: during.append(root.level))
    main(["train", CONFIG, f"--workdir={tmp_path}"])
    assert during == [logging.CRITICAL] and root.level == before <= logging.WARNING


def test_only_names_of_flags_are_respelled():
    kept = ["-a-b", "a-b", "--not a-flag", "--", "--a-b"]
    line = ["--a-b=c-d", "--a-b", "--config.x-y.z=--p-q", *kept]
    assert invocation.underscored(line) == ["--a_b=c-d", "--a_b", "--config.x_y.z=--p-q", *kept]


@pytest.mark.parametrize(
    ("argv", "command", "line"),
    [
        ("../train.py", "train", "PYTHON ../train.py"),
        ("train.py", "generate", "PYTHON -m flaxformer_lite generate"),
        ("/somewhere/flaxformer_lite/__main__.py", "train", "PYTHON -m flaxformer_lite train"),
        ("BIN/flaxformer_lite", "lm-eval", "flaxformer_lite lm-eval"),
        ("elsewhere/flaxformer_lite", "train", "elsewhere/flaxformer_lite train"),
    ],
)
def test_program_says_how_to_start_a_command_as_this_one_was(
    argv, command, line, monkeypatch, tmp_path
):
    for name in ("flaxformer_lite", "python"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [argv.replace("BIN", str(tmp_path))])
    for running, shown in (
        (tmp_path / "python3", "python"),
        ("/other/bin/python3", "/other/bin/python3"),
        (Path.cwd() / ".venv/bin/python", ".venv/bin/python"),
    ):
        monkeypatch.setattr(sys, "executable", str(running))
        assert invocation.program(command) == line.replace("PYTHON", shown)


def test_fields_that_the_command_line_sets():
    argv = "train.py --config=c.py --config.model.d_model=8 --config.data.path x"
    found = invocation.fields_given([*argv.split(" "), "--noconfig.model.scan"])
    assert found == ["model.d_model", "data.path", "model.scan"]
