"""How commands end that are called wrongly."""

import pytest


@pytest.fixture
def refusal(capsys):
    """refusal(command, *flags) -> the one line, but for notices, with which it ends."""

    from flaxformer_lite.__main__ import main

    def run(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*map(str, args)])
        said = capsys.readouterr()
        *notices, error = said.err.splitlines()
        assert ended.value.code == 2 and not said.out and error.startswith("error: ")
        assert all(line.startswith("notice: ") for line in notices)
        return error

    return run
