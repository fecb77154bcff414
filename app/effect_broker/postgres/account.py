"""The account that an embedded server runs under, and how programs are started for it.

PostgreSQL refuses to run as root. This module owns what follows from that: a root process hands the
server to `nobody` (or to whoever owns the data directory already), and everything the server needs
must be reachable for that account. It promises that the server's programs see only a few harmless
environment variables: the caller's may hold keys, and the server's are readable to its account.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if sys.platform != "win32":
    import pwd

UNPRIVILEGED_NAME = "nobody"
# What the dynamic loader and the shell need. Not PG*: PGPORT or PGOPTIONS of the user would bend
# our own server.
INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
FIXED_VARIABLES = {"LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True, slots=True)
class Account:
    """Ourselves, or the account that root steps down to."""

    user: int
    group: int
    steps_down: bool

    def run(
        self,
        command: Sequence[str | Path],
        *,
        timeout_seconds: float,
        directory: Path = Path("/"),
        variables: dict[str, str] | None = None,
        shared_files: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end under this account; its exit status is the caller's to judge.

        Raises `OSError` when it cannot be started and `subprocess.TimeoutExpired` (after killing
        it) when it does not end in time. `shared_files` stay open in it.
        """
        environment = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        arguments = [str(word) for word in command]
        every = environment | FIXED_VARIABLES | (variables or {})
        if self.steps_down:
            return subprocess.run(
                arguments, cwd=directory, env=every, pass_fds=shared_files, capture_output=True,
                stdin=subprocess.DEVNULL, text=True, errors="replace", check=False,
                timeout=timeout_seconds, user=self.user, group=self.group, extra_groups=[],
            )  # fmt: skip
        return subprocess.run(
            arguments, cwd=directory, env=every, pass_fds=shared_files, capture_output=True,
            stdin=subprocess.DEVNULL, text=True, errors="replace", check=False,
            timeout=timeout_seconds,
        )  # fmt: skip

    def reaches(self, directory: Path) -> bool:
        """Whether the account may enter a directory; the kernel is asked, modes omit ACLs."""
        if not self.steps_down:
            return True
        answer = self.run(["/bin/sh", "-c", 'cd -- "$1"', "sh", directory], timeout_seconds=20)
        return answer.returncode == 0

    def own(self, path: Path) -> None:
        """Give a path to the account."""
        if self.steps_down:
            os.chown(path, self.user, self.group)


def account_for(existing_data: Path | None) -> Account:
    """The account a server must run under; the owner of existing files wins over `nobody`.

    Raises `LookupError`, with what to do, when the machine has no fit account.
    """
    if os.geteuid() != 0:
        try:
            pwd.getpwuid(os.geteuid())
        except KeyError as missing:
            raise LookupError(
                f"PostgreSQL runs only under an account with a name, and uid {os.geteuid()} has "
                "none on this machine. Add it to /etc/passwd, or use an account that is there"
            ) from missing
        return Account(os.geteuid(), os.getegid(), steps_down=False)
    if existing_data is not None:
        owner = existing_data.stat()
        if owner.st_uid != 0:
            return Account(owner.st_uid, owner.st_gid, steps_down=True)
    try:
        entry = pwd.getpwnam(UNPRIVILEGED_NAME)
    except KeyError as missing:
        raise LookupError(
            f"PostgreSQL does not run as root, and this machine has no account "
            f"{UNPRIVILEGED_NAME!r} to run it. Run as an ordinary user"
        ) from missing
    return Account(entry.pw_uid, entry.pw_gid, steps_down=True)
