"""The processes that train one model: they agree on decisions, and end together.

They communicate through the key-value store of jax.distributed's coordination service, never
through the devices: this works before the first device is used, and while a device waits for a
process that is gone.
"""

import collections
import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

import jax

from flaxformer_lite import private_names
from flaxformer_lite.config.rules import ConfigError

SILENT_SECONDS = 10  # seconds after which process 0 prints whom it is waiting for
POLL_SECONDS = 1.0  # seconds between polls for announcements
NEWS = "news/"
FAILURE = "failure"
MOST_DIFFERENCES = 4  # most differences that an error lists
CONTINUES = "the same command continues from the last checkpoint, if there is one."
LOST = f"another process is gone; its own output says why; {CONTINUES}"


class ProcessError(RuntimeError):
    """Processes that cannot start or continue together; the message is all a user needs."""


Answer = TypeVar("Answer")
Decided = TypeVar("Decided")


class Processes:
    """A group of `count` processes; this one has the number `index`.

    A single process is a group of one, and needs no store.
    """

    def __init__(
        self, client: private_names.KeyValueStore | None = None, index: int = 0, count: int = 1
    ):
        self._client = client
        self.index = index
        self.count = count
        self._turns: collections.Counter[str] = collections.Counter()
        self._ending = threading.Lock()
        self._own_failure = ""
        self._listeners: dict[str, Callable[[str], None]] = {FAILURE: self._end}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        if client:
            self._thread.start()

    @property
    def first(self) -> bool:
        """Whether this process writes everything that people read."""
        return self.index == 0

    @property
    def alone(self) -> bool:
        return self.count == 1

    def coordinate(
        self, topic: str, value: Answer, decision: Callable[[list[Answer]], Decided]
    ) -> Decided:
        """Lets process 0 decide from the values of all processes; all return its decision.

        Waits as long as the other processes are alive; if one fails or dies, this one ends too.

        Args:
          topic: key of this decision; all processes must use the same topics in the same order.
          value: this process's value, of JSON's types, as is the decision.
          decision: function of the values, in the order of the processes.
        """
        if self.alone:
            return decision([value])
        key = f"{topic}/{self._turns[topic]}"
        self._turns[topic] += 1
        if not self.first:
            self._store.key_value_set(f"{key}/{self.index}", json.dumps(value))
            return json.loads(self._get(f"{key}/decision"))
        others = (
            self._get(f"{key}/{i}", f"waiting for process {i}: {topic}")
            for i in range(1, self.count)
        )
        decided = decision([value, *map(json.loads, others)])
        self._store.key_value_set(f"{key}/decision", json.dumps(decided))
        return decided

    def agree(self, topic: str, facts: Mapping[str, object]) -> None:
        """Checks that facts are the same on all processes.

        Raises:
          ConfigError: on every process, naming the process that differs, the fact, and both values.
        """
        message = self.coordinate(topic, [socket.gethostname(), facts], differences)
        if message:
            raise ConfigError(message)

    def announce(self, topic: str, news: str) -> None:
        """Publishes news on a topic to all listeners; the first announcement wins."""
        # Another process may have been first, or process 0 may be gone.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            if self._client:
                self._client.key_value_set(NEWS + topic, news)

    def listen(self, topic: str, then: Callable[[str], None]) -> None:
        """Registers a function that is called with an announcement, from another thread."""
        self._listeners[topic] = then

    def close(self) -> None:
        """Waits for all processes; after that, one may exit without ending the others."""
        if self._client:
            self.coordinate("the end", None, lambda _: None)
            self._closing.set()
            self._thread.join()

    def fail(self, message: str, code: int) -> NoReturn:
        """Ends all processes with the first failure, which its process and process 0 print."""
        self._own_failure = message
        self.announce(FAILURE, json.dumps([self.index, code, message]))
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # process 0 is gone
            self._end(self._get(NEWS + FAILURE))
        self._end(json.dumps([self.index, code, message]))

    def lose(self, message: str = LOST) -> NoReturn:
        """Ends this process because a peer or the store is gone."""
        self._own_failure = message
        self._end(json.dumps([self.index, 1, message]))

    def _end(self, failure: str) -> NoReturn:
        who, code, message = json.loads(failure)
        with self._ending:  # only one thread may end the process
            if who != self.index:
                time.sleep(POLL_SECONDS)  # this process may be about to end for the same reason
            try:
                if message != self._own_failure:
                    message = f"process {who}: {message}"
                if self.first or who == self.index:
                    print(f"error: {message}", file=sys.stderr, flush=True)
                if self.first:
                    # It hosts the store, from which the others must read this first.
                    time.sleep(2.5 * POLL_SECONDS)
                sys.stdout.flush()
            finally:
                os._exit(code)  # even if stderr is closed

    @property
    def _store(self) -> private_names.KeyValueStore:
        assert self._client is not None, "a process alone needs no store"
        return self._client

    def _look(self) -> None:
        """Polls for announcements, in a thread that must end before Python does."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # process 0 is gone
            while not self._closing.wait(POLL_SECONDS):
                for key, news in self._store.key_value_dir_get(NEWS):
                    then = self._listeners.pop(key.removeprefix(NEWS), None)
                    if then:
                        then(news)

    def _get(self, key: str, waiting: str = "") -> str:
        began = time.monotonic()
        while True:
            try:
                return self._store.blocking_key_value_get(key, round(1000 * POLL_SECONDS))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error) or self._closing.is_set():
                    raise
            if waiting and time.monotonic() - began > SILENT_SECONDS:
                print(waiting, file=sys.stderr, flush=True)
                waiting = ""


ALONE = Processes()


def is_main_process() -> bool:
    """Returns whether this process prints and writes reports: it is alone, or process 0."""
    return private_names.process_id() == 0


def differences(answers: list[list]) -> str:
    """Describes which process differs from most others, and in what; "" if all agree.

    Args:
      answers: [host, facts] of each process.
    """
    differing = []
    names = set[str]()
    for _, facts in answers:
        names |= set(facts)
    for name in sorted(names):
        values = [facts.get(name, "absent") for _, facts in answers]
        usual = max(values, key=values.count)  # on a tie, the value of the lowest process
        odd = [i for i, value in enumerate(values) if value != usual]
        if odd:
            where = f"process {odd[0]} ({answers[odd[0]][0]})"
            if len(odd) > 1:
                where += f" and {len(odd) - 1} more"
            differing.append(f"{where}: {name} is {values[odd[0]]!r}, elsewhere {usual!r}")
    if not differing:
        return ""
    more = ""
    if len(differing) > MOST_DIFFERENCES:
        more = f"; and {len(differing) - MOST_DIFFERENCES} more"
    return (
        f"the processes differ. {'; '.join(differing[:MOST_DIFFERENCES])}{more}. Start all from the"
        " same command, code and data."
    )
