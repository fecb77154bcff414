"""`effect-broker callers`, and the key ring of a caller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import uuid4

import pytest
from psycopg import Connection, sql
from psycopg.rows import TupleRow

from cli.commands import Cli
from effect_broker.keyring import parse_key_ring


@pytest.fixture
def role(superuser: Connection[TupleRow]) -> Iterator[str]:
    """A login of somebody else's, with a name that has to be quoted."""
    name = f'shop "{uuid4().hex[:8]}"'
    superuser.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    yield name
    superuser.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
    superuser.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_a_caller_is_added_listed_and_removed_and_each_twice_is_harmless(
    broker: Cli, superuser: Connection[TupleRow], role: str
) -> None:
    broker("tenants", "create", "acme")
    broker("tenants", "create", "other")
    assert broker("callers", "add", role, "--tenant", "acme", "--json").json["added"]
    again = broker("callers", "add", role, "--tenant", "acme")
    assert (again.code, "could submit before" in again.out) == (0, True)
    (listed,) = broker("callers", "list", "--json").json
    assert (listed["role"], listed["tenant"], listed["exists"]) == (role, "acme", True)
    assert "acme" in broker("callers", "list", "--tenant", "acme").out
    assert broker("callers", "list", "--tenant", "other", "--json").json == []
    assert "remove" in broker("callers", "add", role, "--tenant", "other").refused()
    granted = "SELECT has_function_privilege(%s, 'effect_broker.join_effect'::regproc, 'EXECUTE')"
    assert superuser.execute(granted, [role]).fetchone() == (True,)
    assert broker("callers", "remove", role, "--json").json == {"role": role, "removed": True}
    assert superuser.execute(granted, [role]).fetchone() == (False,)
    assert "no caller" in broker("callers", "remove", role).refused()


def test_a_role_that_cannot_be_a_caller_is_refused_with_a_reason(broker: Cli) -> None:
    broker("tenants", "create", "acme")
    for role, said in (
        ("nobody-here", "make it first"),
        ("effect_broker_worker", "can do no more"),
        ("pg_monitor", "cannot log in"),
        ("x" * 64, "no name"),
        ("", "no name"),
    ):
        assert said in broker("callers", "add", "--tenant", "acme", "--", role).refused()
    assert "no tenant nobody" in broker("callers", "add", "x", "--tenant", "nobody").refused()


def test_a_callers_ring_holds_two_keys_and_never_one_that_signs(
    broker: Cli, ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker("tenants", "create", "acme")
    whole = json.loads(ring)
    whole["encryption"]["keys"]["callers"] = whole["signing"]["keys"]["k1"]
    whole["hmac"]["keys"]["old"] = whole["hmac"]["keys"]["k1"]
    monkeypatch.setenv("EFFECT_BROKER_KEY_RING", json.dumps(whole))
    plain = json.loads(broker("keys", "ring", "--for-caller", "acme").out)
    assert set(plain) == {"encryption", "hmac", "development"}
    assert list(plain["encryption"]["keys"]) == list(plain["hmac"]["keys"]) == ["k1"]
    own = broker("keys", "ring", "--for-caller", "acme", "--encryption-key", "callers").out
    parsed = parse_key_ring(own, source="test", production=False)
    assert (parsed.encryption.active, list(parsed.encryption.keys)) == ("callers", ["callers"])
    assert parsed.signing is None
    missing = broker("keys", "ring", "--for-caller", "acme", "--encryption-key", "none")
    assert "no encryption key" in missing.refused()
    assert "no tenant nobody" in broker("keys", "ring", "--for-caller", "nobody").refused()
    assert "goes with" in broker("keys", "ring", "--encryption-key", "k1").refused()
    both = broker("keys", "ring", "--for-caller", "acme", "--development")
    assert "goes without" in both.refused()
