"""``python warm_start_server.py DESCRIPTOR``: forks processes of the broker, ready imported.

It speaks over the socket DESCRIPTOR with `warm_start`: a request is one message of JSON (`words`,
`environment`, `directory`) with two descriptors (standard output, standard error); the answers are
lines of JSON, `{"started": pid}` in the order of the requests and `{"ended": pid, "code": …}`.

A process that it forks is like one that an interpreter has started: it has nothing but loaded
modules. It dies with this one, and this one ends with its client.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time

PRELOADED = (
    "effect_broker.cli",
    "effect_broker.api.app",
    "effect_broker.durable",
    "effect_broker.hosting",
    "effect_broker.proof.target.server",
    "effect_broker.worker",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.lifespan.on",
    "psycopg_pool",
    "dbos",
)
MESSAGE_BYTES_MAX = 512 * 1024
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def serve(client: socket.socket) -> None:
    """Fork what is asked for until the client is gone; in a fork it returns at once."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    while True:
        ready, _, _ = select.select([client.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(client)
        if client.fileno() in ready:
            message, given, _, _ = socket.recv_fds(client, MESSAGE_BYTES_MAX, 2)
            if not message:
                sys.exit()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for mine in (woken, wakes):
                    os.close(mine)
                client.close()
                _become(json.loads(message), given)
                return
            for theirs in given:
                os.close(theirs)
            _tell(client, {"started": pid})


def _reap(client: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(client, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(client: socket.socket, line: dict[str, int]) -> None:
    client.sendall(json.dumps(line).encode() + b"\n")


def _become(request: dict[str, object], descriptors: list[int]) -> None:
    """Be the process that was asked for, up to its first line of code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for mine, theirs in zip((0, 1, 2), (nothing, *descriptors), strict=True):
        os.dup2(theirs, mine)
        os.close(theirs)
    environment, words = request["environment"], request["words"]
    assert isinstance(environment, dict)
    assert isinstance(words, list)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(str(request["directory"]))
    sys.argv = [str(word) for word in words]


def main() -> None:
    """Load what the broker's processes load, and serve."""
    client = socket.socket(fileno=int(sys.argv[1]))
    for name in PRELOADED:
        importlib.import_module(name)
    # A fork takes along only the thread that forks.
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()
    serve(client)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
