"""Connections whose end tells that a process is gone, and those that tell nothing."""

import socket
import threading

import pytest

from flaxformer_lite.runtime import lifeline


class Watched:
    """Process 0, which listens, and whether it heard of a loss."""

    def __init__(self):
        self.lost = threading.Event()
        self.port, self.key = lifeline.listen(self.lost.set)

    def connect(self):
        line = lifeline.connect("127.0.0.1", self.port, self.key)
        assert line is not None
        return line


@pytest.fixture
def watched():
    return Watched()


def test_the_end_of_a_connection_is_a_loss(watched):
    lines = [watched.connect() for _ in range(3)]
    assert not watched.lost.wait(0.05)
    lines[1].close()
    assert watched.lost.wait(600)
    lines[0].close()
    lines[2].close()


def stranger(watched, *sent):
    with socket.create_connection(("127.0.0.1", watched.port)) as line:
        for part in sent:
            line.sendall(part)


@pytest.mark.parametrize(
    "leave",
    [
        lambda watched: stranger(watched),  # as one who looks for open ports
        lambda watched: stranger(watched, b"GET / HTTP/1.0\r\n\r\n" * 9),
        lambda watched: stranger(watched, watched.key[:9].encode()),
        lambda watched: stranger(watched, watched.key.encode(), lifeline.BYE),
    ],
    ids=["nothing", "another protocol", "half a key", "goodbye"],
)
def test_the_end_of_others_and_of_one_who_said_goodbye_is_none(watched, leave):
    leave(watched)
    line = watched.connect()  # is read after what came before it
    assert not watched.lost.wait(0.2)
    line.close()
    assert watched.lost.wait(600)


def test_without_a_connection_there_is_none():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert lifeline.connect("127.0.0.1", port, "key") is None
