"""SIGTERM and ctrl-C end a run after the step at hand instead of in the middle of it."""

import os
import signal


class Interrupt:
    """Within the block the first signal is only noted in `caught`; a second one acts as it always does."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self):
        self.caught = ""

    def __enter__(self) -> "Interrupt":
        self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *_) -> None:
        self._restore()

    def _note(self, number: int, _frame) -> None:
        self.caught = signal.Signals(number).name
        os.write(2, f"\n{self.caught}: stopping after this step; once more stops at once.\n".encode())
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
