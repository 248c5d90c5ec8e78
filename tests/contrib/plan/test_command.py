"""The plan command as a user meets it: words, JSON, exit codes."""

import json

import pytest

from flaxformer_lite import __main__
from flaxformer_lite.contrib.plan import environment, planner
from flaxformer_lite.contrib.verify import mesh

# ml_collections', of a config file
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")


@pytest.fixture
def plan(capsys):
    """(exit code, stdout, stderr) of `python -m flaxformer_lite plan ...`."""

    def run(*arguments):
        code = 0
        try:
            __main__.main(["plan", *arguments])
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    monkeypatch.setattr(environment, "ENVIRONMENT", {})


FOUR = "--topology=v5e-4"
TINY = ("--config=configs/gpt2_tiny.py", "--analytic", "--config.model.decoder_layers=1")


@pytest.mark.nightly
def test_words_and_overrides(plan):
    code, out, err = plan(*TINY, FOUR, "--config.mesh.fsdp=2", "--config.train.batch_size=32")
    assert (code, err) == (0, "")
    assert "v5e:2x2, 4 chips: data 2 x fsdp 2" in out and "32 sequences" in out and "fits: " in out


def test_json_and_a_step_that_does_not_fit(plan):
    big = ("--config=configs/llama_7b.py", "--analytic", "--config.mesh.fsdp=4", "--json")
    code, out, _ = plan(*big, "--topology=v5e:2x2")
    loaded = json.loads(out)
    assert code == 1 and not loaded["fits"] and loaded["memory"]["total"] > loaded["available"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*TINY, "--topology=v5x:2x2"), "no such machine; did you mean"),
        ((FOUR,), "--config is missing; for example --config=demo"),
        ((FOUR, "--config=configs/none.py"), "=configs/none.py: no such file; the pages are"),
        ((*TINY, FOUR, "--config.mesh.fspd=2"), "no such field; did you mean --config.mesh.fsdp"),
        ((*TINY, FOUR, "--config.mesh.fsdp=3"), "4 devices do not divide by 3"),
        ((*TINY, FOUR, "--analitic"), "--analitic: no such flag; did you mean '--analytic'"),
        ((*TINY, FOUR, "--config.mesh.mode=pmap"), "plan mesh.mode=shard_map"),
        (TINY, "--topology"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(refusal, arguments, message):
    assert message in refusal("plan", *arguments)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--config.train.batch_size=3",), "train.batch_size=3: 1 microbatch(es) over"),
        (
            ("--config.mesh.context=4", "--config.data.length=98"),
            "98 positions, which is not a multiple; try data.length=100",
        ),
        (("--config.mesh.tensor=8", "--config.mesh.data=1"), "does not divide over mesh.tensor=8"),
        (("--config.mesh.tensor=3",), "mesh.tensor=3: 8 devices do not divide by 3"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "verify"])
def test_what_does_not_fit_is_refused_before_anything_is_compiled(
    command, flags, message, refusal, monkeypatch
):
    monkeypatch.setattr(planner, "make", None)
    monkeypatch.setattr(mesh, "reference", None)
    machine = ["--topology=v5e:2x4"] if command == "plan" else []
    assert message in refusal(command, "--config=gpt2_tiny", *machine, *flags)
