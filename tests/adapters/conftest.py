"""What the adapter tests share: a certificate authority and a database of their own."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from peers import Authority
from postgres import EMPTY, Database, RunningServer, clone, drop_database, ensure_template


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    directory: Path = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "peer")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (directory / "peer.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "peer.pem")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(directory / "peer.pem")
    return Authority(server, client)


@pytest.fixture(scope="session")
def adapters_database(running_server: RunningServer) -> Iterator[Database]:
    cloned = clone(running_server, ensure_template(running_server, EMPTY))
    yield cloned
    drop_database(running_server, cloned.name)


@pytest.fixture
def shop_database(adapters_database: Database) -> Database:
    """One database for all tests of this directory, without the schema `shop`."""
    with psycopg.connect(adapters_database.superuser_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS shop CASCADE")
    return adapters_database
