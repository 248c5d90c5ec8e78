"""A connection from each process to process 0, whose end tells at once that the process is gone.

The system closes the connections of a process, however it ends. JAX's coordination service by
itself counts it as lost after seconds of silence, unless the others meet it on a device meanwhile,
which they do not while they save. Where a firewall keeps the connection from being made, or the
whole machine is gone, it remains at that.
"""

import contextlib
import secrets
import selectors
import socket
import threading
from collections.abc import Callable

TIMEOUT = 3.0  # seconds to connect
BYE = b"."  # after which a process may end


def listen(lost: Callable[[], object]) -> tuple[int, str]:
    """Accepts connections in the background, and calls `lost` if one ends without a `BYE`.

    Returns:
      The port, and the key that a process sends first: other connections count for nothing.

    Raises:
      OSError: there is no port.
    """
    family = socket.AF_INET
    if socket.has_dualstack_ipv6():
        family = socket.AF_INET6
    both = family == socket.AF_INET6
    server = socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=1024)
    key = secrets.token_hex(16)
    threading.Thread(target=_watch, args=(server, key.encode(), lost), daemon=True).start()
    return server.getsockname()[1], key


def connect(host: str, port: int, key: str) -> socket.socket | None:
    """Connects to process 0; returns None where that is not possible."""
    with contextlib.suppress(OSError):
        line = socket.create_connection((host.strip("[]"), port), timeout=TIMEOUT)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line.sendall(key.encode())
        return line
    return None


def _watch(server: socket.socket, key: bytes, lost: Callable[[], object]) -> None:
    with contextlib.suppress(OSError), selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        while True:
            for ready, _ in selector.select():
                if ready.fileobj is server:
                    line, _ = server.accept()
                    selector.register(line, selectors.EVENT_READ, (line, bytearray()))
                    continue
                line, received = ready.data
                if _is_over(line, received, key, lost):
                    selector.unregister(line)
                    line.close()


def _is_over(
    line: socket.socket, received: bytearray, key: bytes, lost: Callable[[], object]
) -> bool:
    """Reads what a connection has sent, and returns whether there is nothing to wait for.

    That is after a BYE behind the key, after anything but the key, and at the connection's end.
    """
    try:
        sent = line.recv(len(key) + len(BYE))
    except OSError:  # of the network; whether the process lives is for its heartbeats to say
        return True
    if not sent and received == key:
        lost()
    received += sent
    return not sent or not key.startswith(received)
