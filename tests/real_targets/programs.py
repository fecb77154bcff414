"""The real targets as running programs: how each is started, and how its own state is read.

What a target did is read from the target alone: the charges that it lists, the objects in its
calendar, the requests in its log. Each program starts empty, on loopback where it can be told to,
and is reached over 127.0.0.1 only.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

from peers import refused_port

HERE: Final = Path(__file__).resolve().parent
START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 10.0
# A free port can be taken by another process before the target binds it.
_STARTS_MAX: Final = 3


class NotStarted(Exception):
    """A target did not come up; the text holds the end of its log."""


class Program(ABC):
    """One target in a process of its own: `with StripeMock(…) as target:`."""

    def __init__(self, directory: Path, ready: str) -> None:
        """`ready` is a pattern for the line that says that it listens; its group `port`, if it
        has one, is the port."""
        self.directory = directory
        self._ready = ready
        self.log = directory / f"{type(self).__name__.lower()}.log"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._http: httpx.Client | None = None

    @abstractmethod
    def command(self) -> list[str | Path]:
        """Return the command line; `port` is a free one."""

    @abstractmethod
    def client(self) -> httpx.Client:
        """Return a client that is signed in at the target."""

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def http(self) -> httpx.Client:
        """The test's own access to the target."""
        assert self._http is not None, "the target is not running"
        return self._http

    def __enter__(self) -> Self:
        for start in range(1, _STARTS_MAX + 1):
            self.port = refused_port()
            if self._started():
                break
            self._end()
            if start == _STARTS_MAX:
                said = self.log.read_text(errors="replace")[-2000:]
                raise NotStarted(f"{type(self).__name__} did not start:\n{said}")
        self._http = self.client()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._http is not None:
            self._http.close()
        self._end()

    def _started(self) -> bool:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1", "HOME": str(self.directory)},
            )
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            found = re.search(self._ready, self.log.read_text(errors="replace"))
            if found:
                self.port = int(found.groupdict().get("port") or self.port)
                return True
            time.sleep(0.02)
        return False

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _get_json(self, path: str) -> Any:
        reply = self.http.get(path)
        reply.raise_for_status()
        return reply.json()


class StripeMock(Program):
    """stripe-stateful-mock: charges that honour an Idempotency-Key."""

    SECRET: Final = "sk_test_not_a_secret"

    def __init__(self, directory: Path, node: Path, installed: Path) -> None:
        super().__init__(directory, r"listening on (?P<port>\d+)\n")
        self._node = node
        self._installed = installed

    def command(self) -> list[str | Path]:
        return [self._node, HERE / "npm" / "serve.js", self._installed]

    def client(self) -> httpx.Client:
        signed = {"Authorization": f"Bearer {self.SECRET}"}
        return httpx.Client(base_url=self.origin, headers=signed, trust_env=False)

    def charges(self) -> list[dict[str, Any]]:
        """Return the charges that went through, the newest first."""
        listed = self._get_json("/v1/charges?limit=100")
        assert listed["has_more"] is False
        return [charge for charge in listed["data"] if charge["paid"]]


class Radicale(Program):
    """Radicale: a CalDAV server with one user."""

    SECRET: Final = "not-a-secret"
    CALENDAR: Final = "work"

    def __init__(self, directory: Path, python: Path) -> None:
        super().__init__(directory, r"Radicale server ready\n")
        self._python = python

    def command(self) -> list[str | Path]:
        users = self.directory / "users"
        users.write_text(f"broker:{self.SECRET}\n")
        settings = self.directory / "radicale.ini"
        settings.write_text(
            f"[server]\nhosts = 127.0.0.1:{self.port}\n"
            f"[auth]\ntype = htpasswd\nhtpasswd_filename = {users}\nhtpasswd_encryption = plain\n"
            f"[storage]\nfilesystem_folder = {self.directory / 'collections'}\n"
            "[logging]\nlevel = info\n"
        )
        return [self._python, "-m", "radicale", "--config", settings]

    def client(self) -> httpx.Client:
        signed = ("broker", self.SECRET)
        return httpx.Client(base_url=self.origin, auth=signed, trust_env=False)

    def make_calendar(self) -> None:
        """Make the user's calendar, empty."""
        made = self.http.request("MKCALENDAR", f"/broker/{self.CALENDAR}/")
        assert made.status_code == 201

    def events(self) -> list[str]:
        """Return the text of every event in the calendar."""
        calendar = self.http.get(f"/broker/{self.CALENDAR}/")
        calendar.raise_for_status()
        return re.findall(r"BEGIN:VEVENT\r?\n(.*?)END:VEVENT", calendar.text, re.DOTALL)

    def puts(self) -> int:
        """Return how many PUT requests its log tells of, whatever became of them."""
        return self.log.read_text().count("[INFO] PUT request for '")


class Localstripe(Program):
    """localstripe: payouts that are made again whenever they are asked for again.

    It knows no option for the interface: it listens on all of them.
    """

    SECRET: Final = "sk_not_a_secret"

    def __init__(self, directory: Path, python: Path) -> None:
        super().__init__(directory, r"Running on http")
        self._python = python

    def command(self) -> list[str | Path]:
        # From scratch: its state is in one file for the whole machine, which others may write.
        return [self._python, "-m", "localstripe", "--port", str(self.port), "--from-scratch"]

    def client(self) -> httpx.Client:
        signed = {"Authorization": f"Bearer {self.SECRET}"}
        return httpx.Client(base_url=self.origin, headers=signed, trust_env=False)

    def payouts(self) -> list[dict[str, Any]]:
        """Return every payout, the newest first."""
        listed = self._get_json("/v1/payouts?limit=100")
        assert listed["has_more"] is False
        payouts: list[dict[str, Any]] = listed["data"]
        return payouts


class Moto(Program):
    """moto: queues, buckets and more of AWS, kept in memory; any credentials are good."""

    ACCOUNT: Final = "123456789012"
    REGION: Final = "eu-central-1"

    def __init__(self, directory: Path, python: Path) -> None:
        super().__init__(directory, r"Running on http")
        self._python = python

    def command(self) -> list[str | Path]:
        return [self._python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.origin, trust_env=False)

    def reset(self) -> None:
        """Forget every queue and bucket."""
        self.http.post("/moto-api/reset").raise_for_status()

    def sdk(self, service: str) -> Any:
        """Return the SDK's own client: the test's access, by what nobody here wrote."""
        import boto3  # type: ignore[import-untyped]

        return boto3.client(
            service,
            endpoint_url=self.origin,
            region_name=self.REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )


class NatsServer(Program):
    """nats-server with JetStream, read through its monitoring page."""

    def __init__(self, directory: Path, program: Path, settings: str = "") -> None:
        """`settings` are added to its configuration file."""
        super().__init__(directory, r"Server is ready")
        self._program = program
        self._settings = settings
        self.monitor_port = 0

    def command(self) -> list[str | Path]:
        self.monitor_port = refused_port()
        configuration = self.directory / "nats.conf"
        configuration.write_text(
            f'listen: "127.0.0.1:{self.port}"\nhttp: "127.0.0.1:{self.monitor_port}"\n'
            f'jetstream {{ store_dir: "{self.directory / "streams"}" }}\n{self._settings}\n'
        )
        return [self._program, "-c", configuration]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.monitor_port}", trust_env=False)

    @property
    def server(self) -> str:
        """The URL as a contract writes it."""
        return f"nats://127.0.0.1:{self.port}"

    def stored(self, stream: str) -> int:
        """Return how many messages a stream holds."""
        page = self._get_json("/jsz?streams=true")
        accounts = page.get("account_details") or []
        streams = [found for account in accounts for found in account.get("stream_detail") or []]
        return sum(found["state"]["messages"] for found in streams if found["name"] == stream)


class MailServer(Program):
    """aiosmtpd, which delivers what it takes to a Maildir for each recipient."""

    def __init__(self, directory: Path, python: Path, *options: str) -> None:
        """`options` are those of `python/mail_server.py`."""
        super().__init__(directory, r"ready\n")
        self._python = python
        self._options = options
        self.decree("ok")

    def command(self) -> list[str | Path]:
        script = HERE / "python" / "mail_server.py"
        return [self._python, script, self.directory, str(self.port), *self._options]

    def client(self) -> httpx.Client:
        return httpx.Client(trust_env=False)  # it is read from its files

    def decree(self, fate: str) -> None:
        """Say what becomes of the next mails; see `python/mail_server.py`."""
        (self.directory / "fate").write_text(fate)

    def reset(self) -> None:
        """Forget every mail."""
        shutil.rmtree(self.directory / "mail", ignore_errors=True)
        (self.directory / "arrivals").unlink(missing_ok=True)
        self.decree("ok")

    def arrivals(self) -> list[str]:
        """Return the Message-ID of each mail whose final dot came."""
        place = self.directory / "arrivals"
        return place.read_text().split() if place.exists() else []

    def mails(self, address: str) -> list[bytes]:
        """Return the mails that were delivered to an address."""
        return [mail.read_bytes() for mail in (self.directory / "mail" / address).glob("*/*")]


class Dovecot(Program):
    """Dovecot, which shows the Maildir of one address by IMAP."""

    SECRET: Final = "not-a-secret"

    def __init__(self, directory: Path, program: Path, maildir: Path, tls: Path | None = None):
        super().__init__(directory, r"starting up for imap")
        self._program = program
        self._maildir = maildir
        self._tls = tls

    def command(self) -> list[str | Path]:
        # As root it takes the users that the package made, and shows the mail as nobody; otherwise
        # all of it runs as whoever runs the tests.
        user = login = pwd.getpwuid(os.getuid()).pw_name
        group = grp.getgrgid(os.getgid()).gr_name
        uid, gid = os.getuid(), os.getgid()
        if uid == 0:
            user, group, login, uid, gid = "dovecot", "dovecot", "dovenull", 65534, 65534
        ports = "port = 0" if self._tls else f"port = {self.port}"
        secure = f"port = {self.port}\n ssl = yes" if self._tls else "port = 0"
        ssl = (
            f"ssl = yes\nssl_cert = <{self._tls}\nssl_key = <{self._tls}"
            if self._tls
            else "ssl = no"
        )
        settings = self.directory / "dovecot.conf"
        settings.write_text(
            f"""
protocols = imap
listen = 127.0.0.1
base_dir = {self.directory}/run
state_dir = {self.directory}/state
log_path = /dev/stderr
disable_plaintext_auth = no
auth_failure_delay = 0
{ssl}
default_internal_user = {user}
default_internal_group = {group}
default_login_user = {login}
first_valid_uid = 1
mail_location = maildir:{self._maildir}
service imap-login {{
 chroot =
 inet_listener imap {{
 {ports}
 }}
 inet_listener imaps {{
 {secure}
 }}
}}
service anvil {{
 chroot =
 unix_listener anvil-auth-penalty {{
 mode = 0
 }}
}}
service stats {{
 chroot =
}}
passdb {{
 driver = static
 args = password={self.SECRET}
}}
userdb {{
 driver = static
 args = uid={uid} gid={gid} home={self.directory}/home
}}
"""
        )
        return [self._program, "-F", "-c", settings]

    def client(self) -> httpx.Client:
        return httpx.Client(trust_env=False)
