"""``python -m field_cases.own_hosts COMMAND``: `effect-broker COMMAND` with its own hosts file.

The process enters a mount namespace (Linux) in which the file that `OWN_HOSTS` names lies at
/etc/hosts. Names are resolved by the C library as everywhere; a test changes the file in place, and
the next look for a name sees it. Nothing of the program is changed, and nobody else's names are.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

OWN_HOSTS_PROGRAM: Final = ("field_cases.own_hosts",)
ENV_HOSTS: Final = "OWN_HOSTS"
HOSTS_PATH: Final = "/etc/hosts"
NOBODY: Final = "127.0.0.1 localhost\n"

# <linux/sched.h>, <sys/mount.h>.
_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWUSER: Final = 0x10000000
_MS_BIND: Final = 0x1000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 1 << 18

TESTS: Final = Path(__file__).parents[1]


def own_hosts_environment(hosts: Path) -> dict[str, str]:
    """The variables of a process of `OWN_HOSTS_PROGRAM`; `hosts` is the file that it sees."""
    inherited = os.environ.get("PYTHONPATH", "")
    return {ENV_HOSTS: str(hosts), "PYTHONPATH": f"{TESTS}{os.pathsep}{inherited}".rstrip(":")}


def why_no_own_hosts(hosts: Path) -> str | None:
    """Why no process here can have a hosts file of its own, None if it can."""
    if not sys.platform.startswith("linux"):
        return "mount namespaces are Linux's"
    tried = subprocess.run(
        [sys.executable, "-m", *OWN_HOSTS_PROGRAM, "--check"],
        env={**os.environ, **own_hosts_environment(hosts)},
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode == 0:
        return None
    return (
        "no mount namespace is to be had here; allow unprivileged user namespaces, or run as root"
    )


def enter(hosts: Path) -> None:
    """Put the file in the place of /etc/hosts, for this process alone.

    Raises:
        OSError: the kernel lets no namespace be made.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNS) != 0:
        _expect(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _expect(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    source, place = str(hosts).encode(), HOSTS_PATH.encode()
    _expect(libc.mount(source, place, None, _MS_BIND, None))


def _expect(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main() -> None:
    """Run the command line; with `--check`, only say whether it could be."""
    hosts = Path(os.environ[ENV_HOSTS])
    enter(hosts)
    if "--check" in sys.argv:
        sys.exit(Path(HOSTS_PATH).read_text() != hosts.read_text())
    from effect_broker.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
