"""PgBouncer between a test and its database, in the mode that the test asks for."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tools import not_for_this_platform, requires_tool

START_SECONDS = 10.0
# What a pooler has to be told before it lets in a client with session options, which it drops.
SWALLOWS_OPTIONS = "ignore_startup_parameters = options,extra_float_digits"
_USERS = ("postgres", "effect_broker_api", "effect_broker_worker")


@contextmanager
def pooler(
    directory: Path, superuser_url: str, mode: str, extra: str = "", *, as_superuser: bool = True
) -> Iterator[str]:
    """Run PgBouncer before a database; gives the superuser's URL through it.

    `directory` is made, and must be one that other accounts can enter. With `as_superuser` the
    pooler logs in as `postgres` whoever comes; else as who comes.
    """
    program = requires_tool("pgbouncer")
    parts = urlsplit(superuser_url)
    if parts.password:
        not_for_this_platform("a server that asks for passwords")
    name = parts.path.removeprefix("/")
    host = parse_qs(parts.query).get("host", [parts.hostname or ""])[0]
    port = parse_qs(parts.query).get("port", [str(parts.port or 5432)])[0]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen_port = probe.getsockname()[1]
    database = f"{name} = host={host} port={port} dbname={name}"
    if as_superuser:
        database += " user=postgres"
    settings = _written(directory, database, listen_port, mode, extra)
    # It refuses to run as root; whoever owns the server's socket can reach it.
    owner = pwd.getpwuid(Path(host).stat().st_uid).pw_name if host.startswith("/") else "nobody"
    as_owner = ["-u", owner] if os.geteuid() == 0 else []
    process = subprocess.Popen(
        [program, "-q", *as_owner, settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(listen_port)
        yield f"postgresql://postgres@127.0.0.1:{listen_port}/{name}"
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def _written(directory: Path, database: str, listen_port: int, mode: str, extra: str) -> Path:
    directory.mkdir()
    users = directory / "users.txt"
    users.write_text("".join(f'"{user}" ""\n' for user in _USERS))
    settings = directory / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n{database}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {listen_port}\n"
        f"unix_socket_dir =\nauth_type = trust\nauth_file = {users}\npool_mode = {mode}\n"
        f"default_pool_size = 5\nlogfile = {directory / 'log'}\n{extra}\n"
    )
    for path in (directory, *directory.iterdir()):
        path.chmod(0o777 if path.is_dir() else 0o644)
    return settings


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
