"""One tree of errors, whatever answers; and no secret in any of them."""

from __future__ import annotations

import datetime
import ipaddress
import logging
import ssl
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from effect_broker import (
    AccessRefused,
    AsyncBroker,
    Broker,
    BrokerError,
    Conflict,
    ElectionLost,
    NotConfigured,
    NotFound,
    NotUnderstood,
    Performance,
    RateLimited,
    RequestRefused,
    StaleVersion,
    TooEarly,
    Unavailable,
)
from effect_broker.sdk.errors import error_of, kind_of_code
from effect_broker.sdk.http import HttpTransport
from effect_contracts.problem_codes import ProblemCode, status_of
from hosting.scenes import Scene
from sdk.conftest import Access
from sdk.strangers import Said, stranger

KEY = "eb_this-is-the-secret-of-the-test"
ARGUMENTS = {"card": "4242-secret-of-the-arguments"}
EFFECT_ID = "0c0e3a1f-7a64-8e0c-9b3f-2d5a4d1c8e77"
BRIEF = datetime.timedelta(milliseconds=50)

# What differs from the rule of its status.
SPECIAL = {
    ProblemCode.STALE_VERSION: StaleVersion,
    ProblemCode.TOO_EARLY: TooEarly,
    ProblemCode.ELECTION_LOST: ElectionLost,
    ProblemCode.RATE_LIMITED: RateLimited,
}
BY_STATUS: dict[int, type[BrokerError]] = {
    400: RequestRefused,
    401: AccessRefused,
    403: AccessRefused,
    404: NotFound,
    405: RequestRefused,
    409: Conflict,
    413: RequestRefused,
    415: RequestRefused,
    422: RequestRefused,
    429: RateLimited,
    500: Unavailable,
    503: Unavailable,
}


def _leaves(kind: type[Exception]) -> Iterator[type[Exception]]:
    below = kind.__subclasses__()
    if not below:
        yield kind
    for one in below:
        yield from _leaves(one)


def submit(broker: Broker) -> None:
    broker.submit("acme.charge", ARGUMENTS, operation_key="order:1")


@pytest.mark.parametrize("code", list(ProblemCode))
def test_every_code_of_the_protocol_has_its_error(code: ProblemCode) -> None:
    expected = SPECIAL.get(code, BY_STATUS[status_of(code)])
    assert kind_of_code(code) is expected
    error = error_of(status_of(code), {"code": code.value, "detail": "why", "field": "/tool"})
    assert type(error) is expected
    assert (error.code, error.status, error.field) == (code.value, status_of(code), "/tool")
    assert str(error) == f"{code.value}: why (at /tool)"


@pytest.mark.parametrize(("status", "kind"), BY_STATUS.items())
def test_a_code_of_tomorrow_is_known_by_its_status(status: int, kind: type[BrokerError]) -> None:
    assert type(error_of(status, {"code": "of_tomorrow", "detail": "new"})) is kind


def test_only_what_may_be_repeated_is_unavailable() -> None:
    repeatable = {code for code in ProblemCode if issubclass(kind_of_code(code), Unavailable)}
    assert {status_of(code) for code in repeatable} == {429, 500, 503}


@pytest.mark.parametrize("kind", [*_leaves(httpx.TransportError), httpx.DecodingError])
async def test_every_failure_of_the_library_is_unavailable_and_keeps_the_key_to_itself(
    kind: type[httpx.RequestError],
) -> None:
    class Failing(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise kind(f"cannot send {request.headers['Authorization']}", request=request)

    transport = HttpTransport("http://broker", KEY, tls=None, answer_seconds=1)
    own = transport._client
    transport._client = httpx.AsyncClient(transport=Failing(), headers=own.headers)
    with pytest.raises(Unavailable, match=kind.__name__) as raised:
        await transport.receipt(UUID(EFFECT_ID))
    assert raised.value.__context__ is None
    if kind is not httpx.ConnectError:  # its text is what a person needs, and is told
        assert KEY not in _everything(raised.value)
    await own.aclose()
    await transport.close()


FOREIGN = {
    "bad gateway": (Said(502, b"<html>"), Unavailable),
    "busy proxy": (Said(429, b"", {"Retry-After": "7"}), RateLimited),
    "endless proxy": (Said(503, b"", {"Retry-After": "9" * 5000}), Unavailable),
    "captive portal": (Said(200, b"<html>log in</html>"), NotUnderstood),
    "no object": (Said(200, b"[]"), NotUnderstood),
    "no effect": (Said(200, b"{}"), NotUnderstood),
    "another service": (Said(404, b'{"error": "no route"}'), NotUnderstood),
    "its own login": (Said(401, b"who are you?"), NotUnderstood),
    "half an answer": (Said(503, b'{"code": "stor'), Unavailable),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_an_answer_of_a_stranger_tells_nothing_of_the_effect(name: str) -> None:
    said, kind = FOREIGN[name]
    with stranger(said) as proxy, Broker(proxy.url, KEY, patience=BRIEF) as broker:
        with pytest.raises(kind) as raised:
            submit(broker)
        assert type(raised.value) is kind
        assert len(proxy.asked) == 1
        with pytest.raises(kind):
            broker.get(EFFECT_ID)


def test_what_cannot_be_understood_is_not_repeated_and_what_is_unknown_is() -> None:
    patience = datetime.timedelta(seconds=1)
    for said, least, most in ((Said(404), 1, 1), (Said(503), 3, 20)):
        with stranger(said) as proxy, Broker(proxy.url, KEY, patience=patience) as broker:
            with pytest.raises(BrokerError):
                submit(broker)
            assert least <= len(proxy.asked) <= most


def test_a_retry_after_beyond_the_patience_is_told_at_once() -> None:
    with stranger(Said(503, b"", {"Retry-After": "3600"})) as proxy:
        with Broker(proxy.url, KEY) as broker, pytest.raises(Unavailable) as raised:
            submit(broker)
        assert raised.value.retry_after_seconds == 3600
        assert len(proxy.asked) == 1


def test_the_key_follows_no_redirect() -> None:
    with stranger(Said(200, b"{}")) as elsewhere:
        moved = Said(307, b"", {"Location": f"{elsewhere.url}/v1/effects"})
        with stranger(moved) as proxy, Broker(proxy.url, KEY) as broker:
            with pytest.raises(NotUnderstood):
                submit(broker)
            assert proxy.keys == [f"Bearer {KEY}"]
        assert elsewhere.asked == []


def test_a_path_in_the_url_is_kept() -> None:
    with stranger(Said(404)) as proxy, Broker(f"{proxy.url}/behind/proxy/", KEY) as broker:
        with pytest.raises(NotUnderstood):
            broker.get(EFFECT_ID)
        with pytest.raises(NotUnderstood):
            submit(broker)
        assert proxy.asked == [
            f"GET /behind/proxy/v1/effects/{EFFECT_ID} HTTP/1.1",
            "POST /behind/proxy/v1/effects HTTP/1.1",
        ]


def test_neither_key_nor_arguments_are_in_reprs_errors_and_logs(
    scene: Scene, access: Access, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    for url in (access.url, "http://127.0.0.1:9"):
        with Broker(url, KEY, patience=BRIEF) as broker:
            said.append(repr(broker))
            with pytest.raises(BrokerError) as raised:
                submit(broker)
            said.append(_everything(raised.value))
    said.append(repr(AsyncBroker(access.url, KEY)))
    said.append(caplog.text)
    assert len(caplog.records) > 5, "the libraries do log"
    whole = "\n".join(said)
    assert access.url in whole
    assert KEY not in whole
    assert "secret-of-the-arguments" not in whole


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("", KEY),
        ("broker.example", KEY),
        ("ftp://broker.example", KEY),
        ("http://", KEY),
        (f"http://user:{KEY}@broker.example", KEY),
        (f"http://broker.example?key={KEY}", KEY),
        ("http://broker.example", ""),
        ("http://broker.example", f"{KEY}\r\nX-Other: 1"),
        ("http://broker.example", f"{KEY}é"),
    ],
)
def test_a_url_or_key_that_cannot_be_used_is_refused_before_any_call(url: str, key: str) -> None:
    for face in (Broker, AsyncBroker):
        with pytest.raises(NotConfigured) as raised:
            face(url, key)
        assert KEY not in _everything(raised.value)


def test_the_environment_is_read_and_what_is_missing_is_named() -> None:
    settings = {"EFFECT_BROKER_URL": "http://broker/x", "EFFECT_BROKER_API_KEY": f"{KEY}\n"}
    with Broker.from_environment(settings) as broker:
        assert repr(broker) == "Broker(HttpTransport('http://broker/x'))"
    for name in settings:
        with pytest.raises(NotConfigured, match=name):
            Broker.from_environment({**settings, name: " "})


@pytest.mark.parametrize("name", ["patience", "answer_time"])
def test_a_time_without_a_unit_is_refused_where_it_was_given(name: str) -> None:
    wrong: Any
    for wrong in (10, 0.5, None, datetime.timedelta(seconds=-1)):
        for face in (Broker, AsyncBroker):
            with pytest.raises(NotConfigured, match=f"{name}.*timedelta"):
                face("http://broker.example", KEY, **{name: wrong})


def test_what_names_no_effect_is_told_in_words_of_its_own() -> None:
    with Broker("http://broker.example", KEY) as broker:
        with pytest.raises(RequestRefused, match="its id, which is a UUID") as named:
            broker.get("order:42:charge:v1")
        assert named.value.problem["detail"] in str(named.value)
        assert named.value.problem["reason"] == "format"
        moment = datetime.datetime(2026, 11, 30)
        with pytest.raises(RequestRefused, match=r"datetime with a time zone.*/send_before"):
            broker.submit("demo.charge", {}, operation_key="order:42", send_before=moment)


def test_a_decorated_function_of_coroutines_is_refused_before_it_is_called() -> None:
    async def charge(effect: Performance, order: str) -> str:
        return order

    with Broker("http://broker.example", KEY) as broker:
        decorate = broker.performed("shop.charge", key=lambda order: f"order:{order}:charge")
        with pytest.raises(TypeError, match="AsyncBroker"):
            decorate(charge)


# TLS ----------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of its own for 127.0.0.1, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stranger")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "certificate.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path


def test_a_certificate_that_nobody_vouches_for_gets_no_key(certificate: Path) -> None:
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate)
    with stranger(Said(404), serving) as proxy:
        with (
            Broker(proxy.url, KEY, patience=BRIEF) as broker,
            pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            submit(broker)
        assert proxy.asked == []
        trusting = ssl.create_default_context(cafile=str(certificate))
        with Broker(proxy.url, KEY, tls=trusting) as broker, pytest.raises(NotUnderstood):
            submit(broker)
        assert len(proxy.asked) == 1


def test_verification_cannot_be_turned_off() -> None:
    blind = ssl.create_default_context()
    blind.check_hostname = False
    with pytest.raises(NotConfigured, match="verify"):
        Broker("https://broker.example", KEY, tls=blind)
    blind.verify_mode = ssl.CERT_NONE
    with pytest.raises(NotConfigured, match="verify"):
        Broker("https://broker.example", KEY, tls=blind)


def _everything(error: BaseException) -> str:
    """All that a log could hold of an error: texts, causes, attributes."""
    parts: list[Any] = [repr(error), str(error), vars(error), error.args]
    return "\n".join([*map(str, parts), *traceback.format_exception(error)])
