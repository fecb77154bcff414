"""The adapter `smtp` at aiosmtpd, and its look-up in a mailbox of Dovecot."""

from __future__ import annotations

import asyncio
import contextlib
import email
import logging
import ssl
from collections.abc import Callable
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapter_calls import KEY, budget, dispatch_call, merged, probe_call
from effect_adapters.base import Answer, Budget, Finding, RenderError, SecretUnavailable
from effect_adapters.smtp import SmtpAdapter
from effect_contracts.catalog import catalog_texts
from effect_contracts.document import ContractDocument
from effect_contracts.facts import Outcome, Verdict
from peers import Arrival, peer, refused_port
from real_targets.programs import Dovecot, MailServer
from tools import requires_tool

MAIL: dict[str, Any] = {
    "to": "ada@example.com",
    "subject": "Grüße: 1 & 2",
    "text": "Hello\n.\n.hidden\r\nQUIT\nÄ" + "x" * 2000,
}
MESSAGE_ID = f"<{KEY}@example.com>"
PASSWORD = "never-print-me"
ADAPTER = SmtpAdapter(lambda _reference: PASSWORD)


def _contract(port: int, name: str = "mail-send", **adapter: Any) -> ContractDocument:
    value = yaml.safe_load(catalog_texts()[name])
    place = {"host": "127.0.0.1", "port": port, "security": "none", "login": None}
    return ContractDocument.parse_yaml(
        yaml.safe_dump(merged(value, {"adapter": {**place, **adapter}}))
    )


def _archived(server: MailServer, dovecot: Dovecot, **mailbox: Any) -> ContractDocument:
    place = {"host": "127.0.0.1", "port": dovecot.port, "security": "none"}
    login = {"username": "archive", "password": "env:EFFECT_BROKER_SECRET_IMAP"}
    return _contract(
        server.port, "mail-send-archived", mailbox={**place, "login": login, **mailbox}
    )


async def _send(
    document: ContractDocument,
    within: Budget | None = None,
    adapter: SmtpAdapter = ADAPTER,
    **changes: Any,
) -> Answer:
    wire = adapter.render(document, {**MAIL, **changes}, KEY)
    return await adapter.dispatch(dispatch_call(document, wire, within=within))


async def _look(
    document: ContractDocument,
    within: Budget | None = None,
    secret: str = Dovecot.SECRET,
    **changes: Any,
) -> Finding:
    call = probe_call(document, arguments={**MAIL, **changes}, within=within)
    return await SmtpAdapter(lambda _reference: secret).probe(call)


@pytest.fixture
def server(mail_server: MailServer) -> MailServer:
    """The server without a mail."""
    mail_server.reset()
    return mail_server


async def test_a_mail_arrives_as_it_was_written_under_the_key(server: MailServer) -> None:
    sent = await _send(_contract(server.port))
    assert (sent.outcome, sent.external_id) == (Outcome.COMMITTED, MESSAGE_ID)
    assert sent.receipt_fields["reply"] == "2.0.0 taken as 4711"
    [raw] = server.mails("ada@example.com")
    mail = email.message_from_bytes(raw, policy=default)
    assert mail["Message-ID"] == MESSAGE_ID
    assert (mail["From"], mail["To"]) == ("Notices <notices@example.com>", "ada@example.com")
    assert mail["Subject"] == MAIL["subject"]
    assert mail["Date"] is not None
    body = mail.get_content().replace("\r\n", "\n").rstrip("\n")
    assert body == MAIL["text"].replace("\r\n", "\n")


async def test_a_lost_answer_after_the_dot_is_ambiguous_and_no_one_compares_the_id(
    server: MailServer,
) -> None:
    document = _contract(server.port)
    server.decree("lose")
    lost = await _send(document)
    assert (lost.outcome, lost.code) == (Outcome.AMBIGUOUS, "closed_without_answer")
    assert server.arrivals() == [MESSAGE_ID], "one mail for one attempt"
    # Why the class is unsafe: a second send would be a second mail.
    server.decree("ok")
    await _send(document)
    assert len(server.mails("ada@example.com")) == 2


@pytest.mark.parametrize(
    ("reply", "outcome", "code"),
    [
        ("554 5.7.1 no spam", "rejected", "mail_refused"),
        ("452 4.3.1 disk full", "retryable", "mail_refused"),
        ("421 going down", "ambiguous", "unexpected_reply"),
        ("251 odd", "ambiguous", "unexpected_reply"),
        ("nonsense", "ambiguous", "garbage_answer"),
    ],
)
async def test_the_answer_to_the_dot_is_judged_by_its_number(
    server: MailServer, reply: str, outcome: str, code: str
) -> None:
    server.decree(reply)
    answered = await _send(_contract(server.port))
    assert (answered.outcome.value, answered.code) == (outcome, code)
    assert len(server.arrivals()) == 1


@pytest.mark.parametrize(
    ("refused", "outcome"), [("nobody@example.com", "rejected"), ("busy@example.com", "retryable")]
)
async def test_one_recipient_that_is_refused_keeps_the_mail_from_all(
    server: MailServer, refused: str, outcome: str
) -> None:
    both = ["ada@example.com", refused]
    answered = await _send(_contract(server.port, recipients_max=2, to=both))
    assert (answered.outcome.value, answered.code) == (outcome, "recipient_refused")
    assert server.arrivals() == []
    assert server.mails("ada@example.com") == []


def _talk(arrival: Arrival, lines: dict[bytes, bytes], last: bytes) -> None:
    """Greet, answer each command by `lines` (else 250), and break after the one named `last`."""
    arrival.send(b"220 mail.test\r\n")
    while line := arrival.read_some():
        verb = line[:4]
        if verb == last:
            return arrival.reset()
        arrival.send(lines.get(verb, b"250 OK\r\n"))
    return None


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (lambda arrival: arrival.reset(), "closed_without_answer"),
        (lambda arrival: arrival.send(b"554 go away\r\n"), "greeting_refused"),
        (lambda arrival: _talk(arrival, {}, b"EHLO"), "closed_without_answer"),
        (lambda arrival: _talk(arrival, {}, b"MAIL"), "closed_without_answer"),
        (lambda arrival: _talk(arrival, {}, b"RCPT"), "closed_without_answer"),
        (lambda arrival: _talk(arrival, {}, b"DATA"), "closed_without_answer"),
        (lambda arrival: _talk(arrival, {b"DATA": b"250 odd\r\n"}, b"-"), "unexpected_reply"),
        (lambda arrival: _talk(arrival, {b"MAIL": b"x\r\n"}, b"-"), "garbage_answer"),
        (lambda arrival: arrival.hold(), "deadline"),
    ],
)
async def test_what_breaks_before_the_dot_is_proved_not_to_be_sent(
    script: Callable[[Arrival], None], code: str
) -> None:
    with peer(script) as running:
        broken = await _send(_contract(running.port), within=budget(0.5))
        assert len(running.arrivals) == 1, "nothing below the broker connects again"
    assert (broken.outcome, broken.bytes_may_have_left) == (Outcome.NOT_SENT, False)
    assert broken.code in {code, "connect_failed"}


async def test_the_dot_waits_for_the_gate(server: MailServer) -> None:
    """A process that is paused in front of the dot has sent a text that nobody takes."""
    document = _contract(server.port)
    now = [0.0]

    def pause(point: str) -> None:
        assert point == "before_socket_write"
        now[0] = 60.0

    wire = ADAPTER.render(document, MAIL, KEY)
    call = dispatch_call(document, wire, within=Budget(5.0, lambda: now[0]), reach=pause)
    stopped = await ADAPTER.dispatch(call)
    assert (stopped.outcome, stopped.code) == (Outcome.NOT_SENT, "budget_spent")
    await _send(document)  # the server has long seen the end of the first connection
    assert len(server.arrivals()) == 1


async def test_the_budget_ends_the_whole_attempt(server: MailServer) -> None:
    server.decree("hang")
    began = asyncio.get_running_loop().time()
    cut = await _send(_contract(server.port), within=budget(0.4))
    assert (cut.outcome, cut.code) == (Outcome.AMBIGUOUS, "deadline")
    assert asyncio.get_running_loop().time() - began < 15
    absent = await _send(_contract(refused_port()))
    assert (absent.outcome, absent.code) == (Outcome.NOT_SENT, "connect_refused")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"to": "ada@example.com\r\nRCPT TO:<eve@example.com>"}, "recipient_invalid"),
        ({"to": "ada@example.com, eve@example.com"}, "recipient_invalid"),
        ({"to": "ada@example.com>"}, "recipient_invalid"),
        ({"subject": "Hello\r\nBcc: eve@example.com"}, "subject_invalid"),
        ({"subject": "x" * 501}, "subject_invalid"),
        ({"subject": 7}, "subject_not_text"),
    ],
)
def test_no_argument_writes_a_command_or_a_header(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(RenderError) as refusal:
        ADAPTER.render(_contract(25), {**MAIL, **changes}, KEY)
    assert refusal.value.code == code
    assert "eve" not in str(refusal.value)


# Who may ---------------------------------------------------------------------------------------

LOGIN = {"username": "notices", "password": "env:EFFECT_BROKER_SECRET_SMTP"}


@pytest.mark.parametrize(("security", "option"), [("tls", "--implicit"), ("starttls", None)])
async def test_the_password_goes_over_verified_tls_only(
    tmp_path: Path,
    python_home: Path,
    certified: Callable[[Path], ssl.SSLContext],
    caplog: pytest.LogCaptureFixture,
    security: str,
    option: str | None,
) -> None:
    caplog.set_level(logging.DEBUG)
    trusting = certified(tmp_path / "peer.pem")
    options = ["--tls", str(tmp_path / "peer.pem"), "--login", f"notices:{PASSWORD}"]
    with MailServer(tmp_path, python_home, *options, *([option] if option else [])) as server:
        document = _contract(server.port, security=security, login=LOGIN)
        strange = await _send(document)
        done = await _send(document, adapter=SmtpAdapter(lambda _: PASSWORD, trusting))
        wrong = await _send(document, adapter=SmtpAdapter(lambda _: "wrong", trusting))
        arrivals = server.arrivals()
    assert (strange.outcome, strange.code) == (Outcome.NOT_SENT, "tls_failed")
    assert done.outcome is Outcome.COMMITTED
    assert (wrong.outcome, wrong.code) == (Outcome.NOT_SENT, "access_denied")
    assert len(arrivals) == 1
    assert PASSWORD not in caplog.text


async def test_a_server_that_offers_no_tls_gets_no_password(server: MailServer) -> None:
    document = _contract(server.port, security="starttls", login=LOGIN)
    unsent = await _send(document)
    assert (unsent.outcome, unsent.code) == (Outcome.NOT_SENT, "server_unfit")

    def missing(reference: str) -> str:
        raise SecretUnavailable(reference)

    absent = await _send(document, adapter=SmtpAdapter(missing))
    assert (absent.outcome, absent.code) == (Outcome.NOT_SENT, "secret_unavailable")
    assert server.arrivals() == []


# The mailbox -----------------------------------------------------------------------------------


async def test_a_lost_mail_is_found_in_the_mailbox_that_gets_a_copy(
    server: MailServer, dovecot: Dovecot
) -> None:
    document = _archived(server, dovecot)
    before = await _look(document)
    assert (before.verdict, before.code) == (Verdict.NOT_COMMITTED, "absent_from_mailbox")
    server.decree("lose")
    assert (await _send(document)).outcome is Outcome.AMBIGUOUS
    found = await _look(document)
    assert (found.verdict, found.external_ids) == (Verdict.COMMITTED, (MESSAGE_ID,))
    other = await _look(document, text="Something else")
    assert (other.verdict, other.code) == (Verdict.MISMATCH, "fields_disagree")
    [copy] = server.mails("archive@example.com")
    assert b"archive@example.com" not in copy, "the copy is in the envelope alone"
    server.decree("ok")
    await _send(document)
    both = await _look(document)
    assert both.verdict is Verdict.MISMATCH
    assert len(both.external_ids) == 2


async def test_a_mail_whose_id_only_resembles_ours_is_not_ours(
    server: MailServer, dovecot: Dovecot
) -> None:
    document = _archived(server, dovecot)
    for key in (KEY + "x", KEY.upper()):
        wire = ADAPTER.render(document, MAIL, key)
        sent = await ADAPTER.dispatch(dispatch_call(document, wire))
        assert sent.outcome is Outcome.COMMITTED
    assert (await _look(document)).verdict is Verdict.NOT_COMMITTED


async def test_a_look_up_that_fails_proves_nothing(server: MailServer, dovecot: Dovecot) -> None:
    document = _archived(server, dovecot)
    await _send(document)
    assert (await _look(document, secret="wrong")).code == "access_denied"
    assert (await _look(_archived(server, dovecot, folder="Nowhere"))).code == "folder_missing"
    assert (await _look(_archived(server, dovecot, port=refused_port()))).code == "connect_refused"
    assert (await _look(document, within=budget(0))).code == "budget_spent"
    assert (await _look(_archived(server, dovecot, security="starttls"))).verdict is (
        Verdict.UNKNOWN
    )

    ended: list[bool] = []

    def drip(arrival: Arrival) -> None:
        # A greeting that never ends, for as long as somebody is there to hear it.
        with contextlib.suppress(OSError):
            while not arrival.stopping.wait(0.05):
                arrival.sock.sendall(b"*")
        ended.append(not arrival.stopping.is_set())

    with peer(drip) as running:
        began = asyncio.get_running_loop().time()
        cut = await _look(_archived(server, dovecot, port=running.port), within=budget(0.3))
        assert asyncio.get_running_loop().time() - began < 15
        await asyncio.to_thread(running.settle)
    assert (cut.verdict, cut.code) == (Verdict.UNKNOWN, "deadline")
    assert ended == [True], "the end of the budget is the end of the connection"


async def test_the_mailbox_is_read_over_verified_tls(
    server: MailServer,
    mail_place: Path,
    certified: Callable[[Path], ssl.SSLContext],
) -> None:
    place = mail_place / "private"
    place.mkdir(mode=0o755)
    trusting = certified(place / "peer.pem")
    maildir = mail_place / "mail" / "archive@example.com"
    with Dovecot(place, requires_tool("dovecot"), maildir, place / "peer.pem") as private:
        document = _archived(server, private, security="tls")
        await _send(document)
        strange = await _look(document)
        call = probe_call(document, arguments=MAIL)
        found = await SmtpAdapter(lambda _reference: Dovecot.SECRET, trusting).probe(call)
    assert (strange.verdict, strange.code) == (Verdict.UNKNOWN, "tls_failed")
    assert found.verdict is Verdict.COMMITTED
