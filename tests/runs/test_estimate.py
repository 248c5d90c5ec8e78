from flaxformer_lite.runs.callbacks.estimate import Estimate


def said(steps, seconds):
    lines = []
    watcher = Estimate(steps, lines.append)
    for step, took in enumerate(seconds, 1):
        watcher.step_done(step, {}, took)
    return lines


def test_a_long_run_says_once_how_long_it_will_take():
    (line,) = said(524_288, [None, 2.0, 1.0, 1.0])
    assert "524,285 steps are left, at 1 s each 145:38:05 hours" in line and "train.steps" in line


def test_a_short_run_says_nothing():
    assert said(100, [None, 2.0, 1.0, 1.0]) == []
    assert said(524_288, [None, 60.0]) == []
