"""Joins the processes of a run.

Where a process cannot join, or another is gone, jax 0.10.2 by itself ends it with SIGABRT and 14 to
20 lines, most of them of a stack trace in C++, that name neither the address nor the process.
"""

import ctypes
import functools
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from typing import NoReturn

import jax

from flaxformer_lite import private_names
from flaxformer_lite.config.rules import ConfigError
from flaxformer_lite.runtime.processes import ALONE, CONTINUES, ProcessError, Processes

ABORTED = f"another process is gone, or JAX failed; see the lines above; {CONTINUES}"
_HANDLERS: list[object] = []  # handlers of SIGABRT, which must not be garbage-collected


def join(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    start_timeout: int = 300,
    peer_timeout: int = 60,
) -> Processes:
    """Starts jax.distributed if there is more than one process; call it before JAX uses a device.

    Without arguments, JAX detects the cluster: a TPU pod, Slurm, OpenMPI, Kubernetes. Without a
    cluster this is the only process. JAX's own SIGTERM handler is disabled in favor of
    runs/interrupt.py.

    Args:
      coordinator: host:port of process 0.
      num_processes: number of processes; 1 disables detection.
      process_id: number of this process, from 0.
      start_timeout: seconds for all processes to appear.
      peer_timeout: seconds of silence after which a process counts as lost, and the others end.

    Raises:
      ConfigError: the arguments are incomplete or contradict each other.
      ProcessError: the cluster cannot be determined, or the coordinator's port is taken.
    """
    _check(coordinator, num_processes, process_id)
    if num_processes == 1:
        return ALONE
    devices = None
    if coordinator is None:
        coordinator, num_processes, process_id, devices = _detect(start_timeout)
        if num_processes in (None, 1):
            return ALONE
    assert coordinator is not None and num_processes is not None and process_id is not None, (
        "_check, or _detect"
    )
    if process_id == 0:
        _check_port(coordinator)
    jax.config.update("jax_enable_preemption_service", False)
    _on_abort(functools.partial(_refused, coordinator, num_processes, process_id))
    giving_up = threading.Timer(
        start_timeout, _give_up, (coordinator, num_processes, process_id, start_timeout)
    )
    giving_up.daemon = True
    giving_up.start()
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            local_device_ids=devices,
            cluster_detection_method="deactivate",
            initialization_timeout=start_timeout + 60,  # _give_up is first
            heartbeat_timeout_seconds=peer_timeout,
        )
    except RuntimeError as error:
        raise ProcessError(
            f"process {process_id} cannot join {coordinator}: {str(error).splitlines()[0]}"
        ) from error
    finally:
        giving_up.cancel()
    group = Processes(private_names.coordination_service(), process_id, num_processes)
    _on_abort(functools.partial(group.lose, ABORTED))
    return group


def _check(coordinator: str | None, count: int | None, index: int | None) -> None:
    alone = count == 1 and coordinator is None and not index
    given = [value is not None for value in (coordinator, count, index)]
    if any(given) and not all(given) and not alone:
        raise ConfigError(
            f"--coordinator={coordinator}, --num_processes={count}, --process_id={index}: pass all"
            " three, or none (a TPU pod, Slurm, OpenMPI and Kubernetes are detected);"
            " --num_processes=1 by itself trains alone."
        )
    if alone or coordinator is None or count is None or index is None:
        return
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"--coordinator={coordinator}: must be HOST:PORT of process 0, such as 10.0.0.1:1234."
        )
    if not 0 <= index < count:
        raise ConfigError(
            f"--process_id={index}, --num_processes={count}: processes are numbered 0 to"
            f" {count - 1}."
        )


def _detect(timeout: int) -> private_names.Cluster:
    try:
        with warnings.catch_warnings():
            # in a pod without the kubernetes package, JAX detects nothing: train alone
            warnings.simplefilter("ignore")
            return private_names.detect_cluster(os.environ.get("JAX_COORDINATOR_ADDRESS"), timeout)
    except Exception as error:  # anything that the cluster's own client raises
        reason = " ".join(str(error).split())[:240]
        raise ProcessError(
            f"a cluster was detected, but not its processes ({reason}); pass"
            " --coordinator=HOST:PORT --num_processes=N --process_id=I, or --num_processes=1 to"
            " train alone."
        ) from error


def _check_port(coordinator: str) -> None:
    port = int(coordinator.rpartition(":")[2])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ProcessError(
                f"--coordinator={coordinator}: process 0 cannot listen on port {port}"
                f" ({error.strerror}); another process 0 may be running; choose another port."
            ) from None


def _give_up(coordinator: str, count: int, index: int, timeout: int) -> None:
    """Ends a process that waited for the others in vain, before JAX does so with a stack trace."""
    host, _, port = coordinator.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
        why = (
            f"not all {count} processes have joined {coordinator}; start each with the same"
            " --num_processes"
        )
    except OSError as error:
        what = error.strerror or error
        why = (
            f"process {index} cannot reach process 0 at {coordinator} ({what}); is it running"
            " there?"
        )
    print(
        f"error: after {timeout} s, {why} (--peer_timeout waits longer).",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def _refused(coordinator: str, count: int, index: int) -> NoReturn:
    """Ends a process that process 0 does not accept."""
    why = (
        "another process has this number, or process 0 was started with another --num_processes"
        f" than {count}"
    )
    print(f"error: process {index} cannot join {coordinator}: {why}.", file=sys.stderr, flush=True)
    os._exit(1)


def _on_abort(end: Callable[[], NoReturn]) -> None:
    """Calls `end` where JAX aborts, as it does when a peer is gone or process 0 refuses this one.

    JAX has printed why by then, but as the head of a stack trace, under which the process would end
    with 134. Python's own signal handlers are never called there.
    """
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: end())
    ctypes.CDLL(None).signal(int(signal.SIGABRT), handler)
    _HANDLERS.append(handler)
