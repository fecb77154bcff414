"""The real targets for tests: installed once, started anew and empty for each test."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from effect_broker.proof.broker import ProofBroker
from hosting.scenes import Scene
from migrated import MIGRATED
from postgres import RunningServer, clone, drop_database, ensure_template
from real_targets.installation import node_targets, python_targets
from real_targets.programs import (
    Dovecot,
    Localstripe,
    MailServer,
    Moto,
    NatsServer,
    Radicale,
    StripeMock,
)
from tools import requires_tool

# The first test of a checkout installs, or waits for another worker that does.
TEST_SECONDS = 600
# Shorter than the default, so that nobody waits for a worker that is dead.
TTL_SECONDS = 2.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this folder the time that an installation takes."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session")
def node_home() -> Path:
    """The directory with the npm targets."""
    return node_targets()


@pytest.fixture(scope="session")
def python_home() -> Path:
    """The interpreter with the PyPI targets."""
    return python_targets()


@pytest.fixture
def stripe_mock(
    node_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StripeMock]:
    """stripe-stateful-mock without a charge."""
    monkeypatch.setenv("EFFECT_BROKER_SECRET_STRIPE", StripeMock.SECRET)
    with StripeMock(tmp_path, requires_tool("node"), node_home) as target:
        yield target


@pytest.fixture
def radicale(
    python_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Radicale]:
    """Radicale with one empty calendar."""
    monkeypatch.setenv("EFFECT_BROKER_SECRET_CALDAV", Radicale.SECRET)
    with Radicale(tmp_path, python_home) as target:
        target.make_calendar()
        yield target


@pytest.fixture
def localstripe(
    python_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Localstripe]:
    """localstripe without a payout."""
    monkeypatch.setenv("EFFECT_BROKER_SECRET_LOCALSTRIPE", Localstripe.SECRET)
    with Localstripe(tmp_path, python_home) as target:
        yield target


@pytest.fixture(scope="module")
def moto(python_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    """moto, one for the tests of a module."""
    with Moto(tmp_path_factory.mktemp("moto"), python_home) as target:
        yield target


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server of NATS, one for the tests of a module."""
    with NatsServer(tmp_path_factory.mktemp("nats"), requires_tool("nats-server")) as target:
        yield target


@pytest.fixture(scope="session")
def certified() -> Callable[[Path], ssl.SSLContext]:
    """Write a certificate of 127.0.0.1 with its key; return the context of one who trusts it."""

    def write(place: Path) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "peer")])
        now = datetime.datetime.now(datetime.UTC)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        place.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(place)
        return context

    return write


@pytest.fixture(scope="module")
def mail_place() -> Iterator[Path]:
    """A directory that other users may enter: Dovecot shows no mail as root."""
    with tempfile.TemporaryDirectory(prefix="effect-broker-mail-") as name:
        place = Path(name)
        place.chmod(0o777)
        yield place


@pytest.fixture(scope="module")
def mail_server(mail_place: Path, python_home: Path) -> Iterator[MailServer]:
    """aiosmtpd, one for the tests of a module."""
    with MailServer(mail_place, python_home) as target:
        yield target


@pytest.fixture(scope="module")
def dovecot(mail_place: Path, mail_server: MailServer) -> Iterator[Dovecot]:
    """Dovecot over the Maildir of archive@example.com."""
    place = mail_place / "dovecot"
    place.mkdir(mode=0o755)
    maildir = mail_server.directory / "mail" / "archive@example.com"
    with Dovecot(place, requires_tool("dovecot"), maildir) as target:
        yield target


@pytest.fixture(scope="session")
def scene(
    running_server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """A broker of processes with an API; a case starts the workers that it wants."""
    database = clone(running_server, ensure_template(running_server, MIGRATED))
    environment = {
        "EFFECT_BROKER_HEARTBEAT_TTL_SECONDS": str(TTL_SECONDS),
        "EFFECT_BROKER_SECRET_STRIPE": StripeMock.SECRET,
        "EFFECT_BROKER_SECRET_CALDAV": Radicale.SECRET,
        "EFFECT_BROKER_SECRET_LOCALSTRIPE": Localstripe.SECRET,
        "EFFECT_BROKER_SECRET_AWS_ACCESS_KEY_ID": "test",
        "EFFECT_BROKER_SECRET_AWS_SECRET_ACCESS_KEY": "test",
        "EFFECT_BROKER_SECRET_IMAP": Dovecot.SECRET,
    }
    directory = tmp_path_factory.mktemp("broker")
    broker = ProofBroker(directory, database.superuser_url, environment=environment, migrated=True)
    with broker, Scene(broker) as made:
        broker.prepare()
        broker.start_api()
        yield made
    drop_database(running_server, database.name)
