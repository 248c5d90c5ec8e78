"""Files that commands write for their user: whole or not at all, and refused before a model runs if
they cannot be written."""

import errno
import resource
import tempfile

import numpy as np
import pytest
from scipy import sparse

from flaxformer_lite import __main__ as door
from flaxformer_lite.cli import embed, failures, predict
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files import publish
from tests.cli.test_home import actions

# The arguments that name what a command writes, in a command line without the value.
OUTPUTS = {
    ("predict", "output"): ["--model=m", "--data=d.csv", "--output"],
    ("convert", "dst"): ["m"],
    ("export", "output"): ["--model=m", "--output"],
    ("embed", "output"): ["--model=m", "--text=a", "--output"],
    ("mine", "output"): ["--model=m", "--data=d.jsonl", "--output"],
    ("look", "output"): ["--model=m", "--text=a", "--output"],
    ("compare", "output"): ["m", "--output"],
    ("steps", "output"): ["--workdir=m", "--at=1", "--run", "--output"],
}
FILES = {"embed": "x.npy", "compare": "x.html", "look": "x.html", "export": "x.onnx"}
VECTORS = np.random.default_rng(0).standard_normal((300, 40), np.float32)
ROWS = [{"text": f"row {n}", "prediction": "a"} for n in range(5000)]


def test_every_output_of_a_command_is_here():
    names = ("output", "dst")
    found = {(name, action.dest) for name, action in actions() if action.dest in names}
    assert found == set(OUTPUTS)


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: output[0])
def test_what_cannot_be_written_is_refused_before_anything_is_read(
    output, tmp_path, monkeypatch, capsys
):
    def refuse(dir):
        raise OSError(errno.EROFS, "Read-only file system", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.chdir(tmp_path)
    command = output[0]
    file = FILES.get(command, "x.jsonl")
    with pytest.raises(SystemExit) as end:
        door.main([command, *OUTPUTS[output], str(tmp_path / file)])
    said = capsys.readouterr().err
    assert end.value.code == 2 and "cannot be written (Read-only file system)" in said
    assert str(tmp_path) in said and said.count("\n") == 1


def test_a_place_whose_folders_are_missing_and_one_in_a_file(tmp_path):
    publish.check_writable(tmp_path / "new/folder/x")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"x: cannot be written \(Not a directory\)"):
        publish.check_writable(tmp_path / "file/new/x")


WRITERS = {
    "dense.npy": lambda path: embed._saved(path, VECTORS),
    "tokens.npz": lambda path: embed._saved(path, [VECTORS, VECTORS]),
    "sparse.npz": lambda path: embed._saved(path, sparse.csr_array(VECTORS)),
    "rows.csv": lambda path: predict.write_rows(path, ROWS),
    "rows.tsv": lambda path: predict.write_rows(path, ROWS),
    "rows.jsonl": lambda path: predict.write_rows(path, ROWS),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_does_not_fit_leaves_the_old_one_and_is_named_with_the_cause(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(b"good")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    WRITERS[name](tmp_path / f"other_{name}")  # compiles fonts and the like
    size = (tmp_path / f"other_{name}").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, before[1]))
    try:
        with pytest.raises(OSError) as error:
            WRITERS[name](path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert failures.explain(error.value) == (f"{path}: File too large", 1)
    assert path.read_bytes() == b"good"
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([name, f"other_{name}"])
