import os
import signal

import pytest

from flaxformer_lite.training.interrupt import Interrupt


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_noted_and_the_handlers_come_back(number, capfd):
    before = signal.getsignal(number)
    with Interrupt() as interrupt:
        assert not interrupt.caught and not interrupt.after(1)
        os.kill(os.getpid(), number)
        assert interrupt.after(2) and interrupt.caught == signal.Signals(number).name
    assert signal.getsignal(number) == before
    assert capfd.readouterr().err.strip() == f"{interrupt.caught}: stopping after this step; once more stops at once."


@pytest.fixture
def in_the_foreground():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    yield
    signal.signal(signal.SIGINT, before)


def test_the_second_ctrl_c_acts_as_always(in_the_foreground):
    with pytest.raises(KeyboardInterrupt), Interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
