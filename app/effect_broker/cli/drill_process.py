"""The process of a drill's worker, as the command sees it that has started it.

The command holds the write end of the worker's standard input: when the command is gone, whatever
has ended it, the worker reads the end of the stream and ends in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Final
from uuid import UUID

from effect_broker.drills import SAYS_DIES, SAYS_READY

_END_SECONDS: Final = 70.0  # a drain may let a send run for a minute


class DrillProcess:
    """One started worker."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._is_ready = asyncio.Event()
        self.executor_id: str | None = None
        self._reached: str | None = None
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def started(cls, drill_id: UUID, tenant_id: UUID) -> DrillProcess:
        """Start the worker of a drill with the environment of this process."""
        environment = {"EFFECT_BROKER_LOG_LEVEL": "WARNING", **os.environ}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "effect_broker",
            "drill", "worker", str(drill_id), "--tenant-id", str(tenant_id),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a Ctrl-C is for the command, which then ends the worker
        )  # fmt: skip
        return cls(process)

    async def ready(self) -> bool:
        """Wait until it can take an effect; False if it ended instead."""
        await self._is_ready.wait()
        return self.executor_id is not None

    @property
    def ended(self) -> bool:
        """Whether it is gone, and all that it said was read."""
        return self._reading.done() and self._process.returncode is not None

    @property
    def point(self) -> str | None:
        """The fault point at which it has died by SIGKILL; None while it lives or otherwise."""
        return self._reached if self._process.returncode == -signal.SIGKILL else None

    async def end(self) -> None:
        """End it in order if it is not gone."""
        if self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), _END_SECONDS)
            except TimeoutError:
                self._process.kill()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for raw in self._process.stdout:
            line = raw.decode(errors="replace").strip()
            if line.startswith(SAYS_READY):
                self.executor_id = line.removeprefix(SAYS_READY)
                self._is_ready.set()
            elif line.startswith(SAYS_DIES):
                self._reached = line.removeprefix(SAYS_DIES)
        await self._process.wait()
        self._is_ready.set()


def end_with_parent() -> None:
    """In the worker: end in order when the standard input comes to its end."""

    def read() -> None:
        if not os.read(sys.stdin.fileno(), 1):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            os.kill(os.getpid(), signal.SIGTERM)

    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), read)
