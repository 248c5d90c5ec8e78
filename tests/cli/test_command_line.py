"""Bad command lines, each in its own process: one line on stderr, exit code 2, no traceback."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flaxformer_lite.cli import command_line

ROOT = Path(__file__).parents[2]
CONFIG = "--config=configs/gpt2_tiny.py"


def train(*args, cwd=ROOT):
    return subprocess.run([sys.executable, str(ROOT / "train.py"), *args], cwd=cwd, capture_output=True, text=True)


def test_help_is_quick_and_needs_no_jax():
    began = time.monotonic()
    done = train("--help")
    assert time.monotonic() - began < 3
    assert "python train.py --config=" in done.stdout and "--workdir" in done.stdout and not done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "--config is missing; for example --config=configs/demo.py"),
        ((CONFIG,), "--workdir is missing; for example --workdir=runs/demo"),
        (("--config=configs/gpt3.py", "--workdir=x"), "--config=configs/gpt3.py: no such file."),
        ((CONFIG, "--wrkdir=x"), "Unknown command line flag 'wrkdir'. Did you mean: workdir ?"),
        ((CONFIG, "--workdir=x", "steps=3"), "'steps=3' is not a flag; flags look like --workdir=runs/demo."),
        (("--config.train.steps=3", "--workdir=x"), "--config is missing; for example --config=configs/demo.py"),
        (
            (CONFIG, "--workdir=x", "--config.trian.steps=3"),
            "--config.trian.steps: no such field; did you mean --config.train.steps?",
        ),
        (
            (CONFIG, "--workdir=x", "--config.train.stepz=3"),
            "--config.train.stepz: no such field; did you mean --config.train.steps?",
        ),
        ((CONFIG, "--workdir=x", "--config.train.steps=many"), "flag --config.train.steps=many: invalid literal"),
        (
            (CONFIG, "--workdir=x", "--config.model.scan=maybe"),
            "flag --config.model.scan=maybe: Non-boolean argument to boolean flag maybe",
        ),
        ((CONFIG, "--workdir=x", "--config.optimizer.name=adm"), "name='adm': no 'adm'; did you mean 'adamw'?"),
        (
            (CONFIG, "--workdir=x", "--config.model.num_heads=3"),
            "d_model=128, num_heads=3: the width must be a multiple",
        ),
    ],
)
def test_mistakes_are_one_line(args, message, tmp_path):
    done = train(*args)
    assert done.returncode == command_line.BAD_INPUT
    assert done.stderr.startswith("error: ") and message in done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert not (ROOT / "x").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def get_config(:\n", r"--config=.*SyntaxError: invalid syntax"),
        ("x = 1\n", r"AttributeError: module .* has no attribute 'get_config'"),
        ("def get_config():\n    raise ValueError('a rule is broken')\n", r"ValueError: a rule is broken"),
    ],
)
def test_a_config_file_that_fails_is_named(source, message, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(source)
    done = train(f"--config={path}", "--workdir=x")
    assert done.returncode == command_line.BAD_INPUT
    assert re.search(message, done.stderr) and str(path) in done.stderr
    assert done.stderr.count("\n") == 1


def test_ctrl_c_in_the_middle_of_an_import_ends_without_a_traceback(tmp_path):
    path, begun = tmp_path / "slow.py", tmp_path / "begun"
    path.write_text(f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(60)\n")
    args = [sys.executable, str(ROOT / "train.py"), f"--config={path}", "--workdir=x"]
    process = subprocess.Popen(args, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == -signal.SIGINT
