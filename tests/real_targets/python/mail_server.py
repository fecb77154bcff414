"""A mail server on aiosmtpd that delivers to Maildirs; run by the interpreter of the real targets.

    mail_server.py DIRECTORY PORT [--tls PEM] [--implicit] [--login USER:PASSWORD]

The protocol is aiosmtpd's. What becomes of a mail is in the file DIRECTORY/fate: `ok`, `lose`
(deliver it and break the connection instead of answering), `hang` (deliver it and say nothing), or
the very line to answer with, the mail not delivered. The addresses nobody@ and busy@ are refused.
"""

from __future__ import annotations

import argparse
import asyncio
import mailbox
import os
import ssl
from email import message_from_bytes
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import (  # type: ignore[import-not-found]
    SMTP,
    AuthResult,
    LoginPassword,
)


class Deliveries:
    """What the server does with what comes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def handle_RCPT(
        self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any
    ) -> str:
        if address.startswith("nobody@"):
            return "550 no such user"
        if address.startswith("busy@"):
            return "450 later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, _session: Any, envelope: Any) -> str:
        fate = (self._directory / "fate").read_text()
        content = envelope.content
        with (self._directory / "arrivals").open("a") as arrivals:
            arrivals.write(f"{message_from_bytes(content)['Message-ID']}\n")
        if fate not in {"ok", "lose", "hang"}:
            return fate
        for address in envelope.rcpt_tos:
            self._deliver(address, content)
        if fate == "lose":
            server.transport.abort()
        if fate == "hang":
            await asyncio.sleep(3600)
        return "250 2.0.0 taken as 4711"

    def _deliver(self, address: str, content: bytes) -> None:
        place = self._directory / "mail" / address
        for part in ("cur", "new", "tmp"):
            (place / part).mkdir(parents=True, exist_ok=True)
        mailbox.Maildir(place, create=False).add(content)


def accepts(login: str) -> Any:
    """Return an authenticator for one user."""

    def judge(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> Any:
        given = isinstance(data, LoginPassword) and b":".join(data).decode()
        return AuthResult(success=given == login, handled=False)

    return judge


async def serve(options: argparse.Namespace) -> None:
    """Serve until the process is ended."""
    tls = None
    if options.tls:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(options.tls)
    handler = Deliveries(options.directory)

    def protocol() -> SMTP:
        return SMTP(
            handler,
            hostname="mail.test",
            tls_context=None if options.implicit else tls,
            require_starttls=bool(tls) and not options.implicit,
            auth_required=bool(options.login),
            auth_require_tls=bool(tls) and not options.implicit,
            authenticator=accepts(options.login) if options.login else None,
        )

    loop = asyncio.get_running_loop()
    implicit = tls if options.implicit else None
    server = await loop.create_server(protocol, "127.0.0.1", options.port, ssl=implicit)
    print("ready", flush=True)
    await server.serve_forever()


def main() -> None:
    """Read the command line and serve."""
    os.umask(0)  # the program that shows the mail runs as another user
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--tls")
    parser.add_argument("--implicit", action="store_true")
    parser.add_argument("--login")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
