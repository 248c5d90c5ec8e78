"""Processes tokenize one text together; one is killed, all are, and the text changes in between."""

import pytest

from tools import faults_store


@pytest.mark.parametrize("locks", [True, False])
def test_what_killed_processes_leave_is_what_one_process_makes(tmp_path, locks):
    killed = faults_store.hunt(tmp_path, turns=4, locks=locks)
    assert killed >= 1
