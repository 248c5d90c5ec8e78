import gc
import os
import signal
import time

import pytest

from flaxformer_lite.runs.interrupt import Interrupt
from tests.marks import daily

SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


@pytest.fixture(autouse=True)
def not_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def until(condition):
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_while_training_is_noted_and_the_second_ends(number, capfd):
    before = signal.getsignal(number)
    ended = []
    with Interrupt(ended.append) as interrupt, interrupt.training(0):
        assert not interrupt.caught and not interrupt.after(1)
        os.kill(os.getpid(), number)
        until(lambda: interrupt.caught)
        assert interrupt.after(2) and interrupt.caught == number.name and not ended
        os.kill(os.getpid(), number)
        until(lambda: ended)
    assert ended == [number] and signal.getsignal(number) == before
    said = f"\n{number.name}: stopping after this step; once more stops at once.\n"
    assert capfd.readouterr().err == said


@pytest.mark.parametrize("number", daily(SIGNALS, (signal.SIGTERM,)))
def test_a_signal_before_or_after_training_ends_even_in_a_callback_of_the_collector(number):
    ended = []

    def kill(*_):
        gc.callbacks.remove(kill)
        os.kill(os.getpid(), number)

    with Interrupt(ended.append) as interrupt:
        gc.callbacks.append(kill)
        gc.collect()
        until(lambda: len(ended) == 1)
        with interrupt.training(0):
            pass
        os.kill(os.getpid(), number)
        until(lambda: len(ended) == 2)
    assert ended == [number, number] and not interrupt.caught


def test_a_hangup_that_nohup_ignores_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupt():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
