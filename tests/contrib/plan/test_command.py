"""The plan command as a user meets it: words, JSON, exit codes."""

import json

import pytest

from flaxformer_lite import __main__
from flaxformer_lite.contrib.plan import environment, planner
from flaxformer_lite.contrib.verify import mesh

# ml_collections', of a config file
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")


@pytest.fixture
def plan(capsys, monkeypatch):
    """(exit code, stdout, stderr) of `python -m flaxformer_lite plan ...`, without a compiler."""
    monkeypatch.setattr(environment, "ENVIRONMENT", {})

    def run(*arguments):
        code = 0
        try:
            __main__.main(["plan", *arguments])
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


TINY = ("--config=configs/gpt2_tiny.py", "--analytic", "--config.model.decoder_layers=1")


@pytest.mark.nightly
def test_words_and_overrides(plan):
    code, out, err = plan(
        *TINY, "--topology=v5e-4", "--config.mesh.fsdp=2", "--config.train.batch_size=32"
    )
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
        (("--topology=v5e-4",), "--config is missing; for example --config=demo"),
        (
            ("--topology=v5e-4", "--config=configs/none.py"),
            "--config=configs/none.py: no such file; the pages are",
        ),
        (
            (*TINY, "--topology=v5e-4", "--config.mesh.fspd=2"),
            "no such field; did you mean --config.mesh.fsdp",
        ),
        ((*TINY, "--topology=v5e-4", "--config.mesh.fsdp=3"), "4 devices do not divide by 3"),
        (
            (*TINY, "--topology=v5e-4", "--analitic"),
            "--analitic: no such flag; did you mean '--analytic'",
        ),
        (TINY, "--topology"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(plan, arguments, message):
    code, out, err = plan(*arguments)
    assert code == 2 and not out
    assert message in err and err.startswith("error: ") and err.count("\n") == 1


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
    command, flags, message, capsys, monkeypatch
):
    monkeypatch.setattr(planner, "make", None)
    monkeypatch.setattr(mesh, "reference", None)
    monkeypatch.setattr(environment, "ENVIRONMENT", {})
    machine = ["--topology=v5e:2x4"] if command == "plan" else []
    with pytest.raises(SystemExit) as ended:
        __main__.main([command, "--config=gpt2_tiny", *machine, *flags])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and message in said and said.count("\n") == 1


def test_pmap_cannot_be_planned(plan):
    assert (
        "plan mesh.mode=shard_map" in plan(*TINY, "--topology=v5e-4", "--config.mesh.mode=pmap")[2]
    )
