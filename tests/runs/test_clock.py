import time

import pytest

from flaxformer_lite.runs.report import clock


def test_each_moment_counts_for_the_innermost_part(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def passes(seconds):
        now[0] += seconds

    one = clock.Clock()
    passes(5)
    one.turn_to("steps")
    passes(60)
    with one.during("evaluation"):
        passes(2)
        with one.during("compile"):
            assert one.doing == "compile"
            passes(7)
        passes(1)
    with one.during("devices"), pytest.raises(OSError), one.during("checkpoint"):
        passes(3)
        raise OSError
    passes(22)
    assert one.doing == "steps"
    spent = {"start": 5, "steps": 82, "evaluation": 3, "compile": 7, "checkpoint": 3}
    assert one.read() == spent | {"devices": 0}
    said = "1:40: 82% in steps, 7% compiling, 3% evaluating, 3% saving, 5% starting"
    assert clock.describe_time(one.seconds) == said
    assert clock.goodput(one.seconds) == 0.82 and clock.goodput({}) == 0.0
    # work of the host and of devices are one part
    assert clock.merge_parts({"steps": 1.0, "devices": 2.0, "other": 0.0}) == {"steps": 3.0}
