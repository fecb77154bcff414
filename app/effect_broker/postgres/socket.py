"""Where the socket of an embedded server lies.

This module owns one rule: in the data directory, which only the server's account may enter; or,
where a socket's address cannot name a file in there, in a private directory with a short name. It
promises that everybody who knows the data directory computes the same place.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

from effect_broker.postgres.account import Account

PORT = 5432  # Names the socket file only; in the URL too, or the user's PGPORT would change it.
# sockaddr_un.sun_path holds 108 bytes on Linux and 104 on macOS, with the closing NUL.
SOCKET_PATH_BYTES_MAX = 103
# A comma parts hosts in a connection URL; quotes and blanks part words in server settings.
PLAIN_PATH = re.compile(r"/[A-Za-z0-9/._+~@-]*")
SHORT_PARENT = Path("/tmp")  # noqa: S108  fixed, not $TMPDIR: all users must agree on it


def socket_directory(data: Path) -> Path:
    """The data directory itself, or a short one under /tmp."""
    longest = f"{data}/.s.PGSQL.{PORT}"
    if len(os.fsencode(longest)) <= SOCKET_PATH_BYTES_MAX and PLAIN_PATH.fullmatch(str(data)):
        return data
    digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    return SHORT_PARENT / f"effect-broker-{digest}"


def make_private_directory(directory: Path, account: Account) -> None:
    """Make a directory for one account's eyes in a place where anybody may make one.

    Raises `PermissionError` if somebody else was there first.
    """
    try:
        directory.mkdir(mode=0o700)
        account.own(directory)
    except FileExistsError:
        pass
    found = directory.lstat()
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    if not private or found.st_uid != account.user:
        raise PermissionError(
            f"{directory} exists and is not a private directory of the server's account "
            "(remove it, or use a shorter path of plain letters)"
        )
