"""A handful of the kills that `make faults` does fifty of."""

from tools import faults


def test_killed_at_any_instant_in_a_save_and_in_a_deletion_nothing_is_lost(tmp_path, capsys):
    faults.run(tmp_path, kills=3, steps=100)
    assert "| 3 |" in capsys.readouterr().out
