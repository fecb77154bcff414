"""Locks between processes that the kernel gives back by itself, however the holder ends.

This module owns `FileLock`, a `flock(2)` lock on a small file, and `Countdown`, the patience of
those who wait for one. The promise: a lock is held exactly as long as some process holds the open
file, so `kill -9` frees it at once and no number in a file (a pid, a time) is ever believed.

A lock belongs to the *open file*, not to the process. A program started with that file open holds
the lock together with us, and keeps it when we are gone: that is how one can ask "does any process
of that server still live?" without knowing a pid. flock works on local file systems of Linux and
macOS; NFS turns it into another kind of lock, so the directory must be local.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from pathlib import Path

if sys.platform != "win32":
    import fcntl

POLL_SECONDS = 0.02  # The kernel offers no flock with a time limit, so waiting is asking often.


class Countdown:
    """How much of a caller's patience is left, on the monotonic clock."""

    __slots__ = ("_ends_at", "total_seconds")

    def __init__(self, total_seconds: float) -> None:
        self.total_seconds = total_seconds
        self._ends_at = time.monotonic() + total_seconds

    @property
    def left_seconds(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._ends_at - time.monotonic())

    def wait_a_little(self) -> bool:
        """Rest for one poll; False, at once, when no patience is left."""
        if self.left_seconds == 0.0:
            return False
        threading.Event().wait(min(POLL_SECONDS, self.left_seconds))
        return True


class FileLock:
    """One process's hold on one lock file, made if missing and never removed."""

    __slots__ = ("__weakref__", "_descriptor", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        _open_locks.add(self)

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    @property
    def descriptor(self) -> int:
        """The open file that carries the lock, for `pass_fds` of a program that shall share it."""
        assert self._descriptor is not None, "only a held lock can be shared"
        return self._descriptor

    def try_acquire(self, *, shared: bool = False) -> bool:
        """Take the lock if it is free now.

        Raises `OSError` when the file cannot be opened, for instance for lack of permission.
        """
        assert self._descriptor is None, "the lock is held already"
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def acquire(self, countdown: Countdown, *, shared: bool = False) -> bool:
        """Take the lock, waiting as long as the countdown allows; False when it ran out."""
        while not self.try_acquire(shared=shared):
            if not countdown.wait_a_little():
                return False
        return True

    def release(self) -> None:
        """Give the lock back for everyone who shares the open file."""
        if self._descriptor is None:
            return
        # Unlock before closing: a thread that is just starting a program may hold a copy of the
        # open file for the moment between fork and exec, and others must not see that as a hold.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close our copy only: programs that were started with the open file go on holding it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


# A child made by a bare fork() shares our open files and would prolong every hold. It did not ask
# for any, so it closes its copies; its parent's holds are untouched by that.
_open_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forget_in_forked_child() -> None:
    for lock in list(_open_locks):
        lock.forget()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_in_forked_child)
