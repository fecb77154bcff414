"""The judgement of doctor, over facts: what fails, what warns, and that each says what to do."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from effect_broker.cli import checks
from effect_broker.cli.checks import Finding, Level
from effect_broker.cli.key_scope import PAGE, key_scope_findings
from effect_broker.keyring import new_key_ring, parse_key_ring
from effect_broker.store.diagnosis import (
    BusyContract,
    FleetFacts,
    RecentKey,
    ServerFacts,
    SessionFacts,
)
from effect_broker.store.tenants import KeyRecord
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument

SERVER = ServerFacts(170002, False, False, "on", "on", "on", "", 0, 100, 3, 4, 2)
SESSION = SessionFacts("effect_broker_api", False, False, "on", 1.5, 2.0, False, ())
FLEET = FleetFacts(
    schema_version="0003",
    engine_version=125,
    queue_registered=True,
    live_workers=2,
    draining_workers=0,
    beating=("vm-1-0123456789ab", "vm-2-ba9876543210"),
    holders={"vm-1-0123456789ab": 3},
    waiting=3,
    overdue=0,
    overdue_longest_seconds=0.0,
    parked={},
    busy=(),
    alerts={},
    halted=False,
    holds=(),
    hmac_key_ids=("k1",),
    payload_key_ids=("k1",),
    recent_keys=(RecentKey("acme", "demo.charge", "order:1:charge"),),
)
RING = parse_key_ring(new_key_ring("k1", development=False), source="test", production=True)


def levels(findings: Iterable[Finding]) -> dict[str, Level]:
    """The worst level of each check; every finding that is not ok has to say what to do."""
    order = list(Level)
    worst: dict[str, Level] = {}
    for finding in findings:
        assert (finding.remedy is None) == (finding.level is Level.OK), finding
        before = worst.get(finding.check, Level.OK)
        worst[finding.check] = max(before, finding.level, key=order.index)
    return worst


def bad(findings: Iterable[Finding]) -> dict[str, Level]:
    """The checks that are not ok."""
    return {check: level for check, level in levels(findings).items() if level is not Level.OK}


def _key(expires_in_seconds: float | None, *, revoked: bool = False) -> KeyRecord:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return KeyRecord(
        uuid4(), "acme", ("effects",), at, at if revoked else None, None, expires_in_seconds
    )


def test_keys_that_are_about_to_end_are_named_the_soonest_first() -> None:
    day = 86_400.0
    soon, sooner = _key(13.9 * day), _key(2 * day)
    silent = [_key(None), _key(14.1 * day), _key(-1.0), _key(day, revoked=True)]
    found = list(checks.api_key_findings([soon, *silent, sooner]))
    assert [finding.level for finding in found] == [Level.WARN, Level.WARN]
    assert str(sooner.key_id) in found[0].text
    assert "2 d" in found[0].text
    assert str(soon.key_id) in found[1].text
    assert bad(checks.api_key_findings(silent)) == {}


def test_a_sound_deployment_has_no_finding() -> None:
    assert bad(checks.server_findings(SERVER)) == {}
    assert bad(checks.fleet_findings(FLEET, "0003")) == {}
    assert bad(checks.ring_findings(RING, FLEET)) == {}
    assert bad(key_scope_findings(FLEET.recent_keys)) == {}
    for process in ("api", "worker"):
        findings = checks.session_findings(
            SESSION, process=process, sees_all_tenants=False, production=True
        )
        assert bad(findings) == {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": 140011}, {"postgres_version": Level.FAIL}),
        ({"version": 190000}, {"postgres_version": Level.WARN}),
        ({"in_recovery": True, "read_only": True}, {"writable": Level.FAIL}),
        ({"read_only": True}, {"writable": Level.FAIL}),
        ({"fsync": "off"}, {"fsync": Level.FAIL}),
        ({"full_page_writes": "off"}, {"full_page_writes": Level.FAIL}),
        ({"synchronous_commit": "off"}, {"synchronous_commit": Level.FAIL}),
        ({"standbys": 1}, {"failover": Level.WARN}),
        ({"standbys": 1, "synchronous_standby_names": "*"}, {}),
        (
            {"standbys": 1, "synchronous_standby_names": "*", "synchronous_commit": "local"},
            {"failover": Level.WARN},
        ),
    ],
)
def test_an_unfit_server_is_named(change: dict[str, object], expected: dict[str, Level]) -> None:
    assert bad(checks.server_findings(replace(SERVER, **change))) == expected  # type: ignore[arg-type]


def test_default_connections_are_enough_for_three_workers_and_one_too_many_is_named() -> None:
    assert bad(checks.connection_findings(SERVER, 3)) == {}
    (finding,) = checks.connection_findings(SERVER, 4)
    assert (finding.check, finding.level) == ("connections", Level.WARN)
    assert finding.text.startswith("103 of 97 connections")
    # Sessions of other programs, and of more API processes than one, take room as well.
    for facts in (replace(SERVER, foreign_sessions=40), replace(SERVER, api_sessions=60)):
        assert bad(checks.connection_findings(facts, 2)) == {"connections": Level.WARN}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"login_superuser": True}, {"role_api": Level.FAIL}),
        ({"passes_row_security": True}, {"role_api": Level.FAIL}),
        ({"enters_engine": True}, {"api_and_engine": Level.FAIL}),
        ({"unguarded_tables": ("effect_intents",)}, {"row_security": Level.FAIL}),
        ({"lock_timeout_seconds": 0.0}, {"session_api": Level.FAIL}),
        ({"idle_timeout_seconds": 0.0}, {"session_api": Level.FAIL}),
        ({"idle_timeout_seconds": 3600.0}, {"session_api": Level.FAIL}),
        ({"synchronous_commit": "off"}, {"session_api": Level.FAIL}),
    ],
)
def test_a_role_with_too_many_rights_is_named(
    change: dict[str, object], expected: dict[str, Level]
) -> None:
    facts = replace(SESSION, **change)  # type: ignore[arg-type]
    findings = checks.session_findings(
        facts, process="api", sees_all_tenants=False, production=True
    )
    assert bad(findings) == expected


def test_a_superuser_is_a_warning_where_one_develops() -> None:
    facts = replace(SESSION, login_superuser=True)
    findings = checks.session_findings(
        facts, process="worker", sees_all_tenants=True, production=False
    )
    assert bad(findings) == {"role_worker": Level.WARN}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"schema_version": "0000"}, {"schema": Level.FAIL}),
        ({"engine_version": None, "queue_registered": None}, {"engine": Level.FAIL}),
        ({"queue_registered": False}, {"queue": Level.WARN}),
        ({"live_workers": 0}, {"workers": Level.FAIL}),
        ({"live_workers": 0, "waiting": 0}, {"workers": Level.WARN}),
        ({"beating": ("local", "vm-1-0123456789ab")}, {"executor_ids": Level.FAIL}),
        ({"holders": {"vm-9-0123456789ab": 2}}, {"dead_executors": Level.WARN}),
        ({"overdue": 4, "overdue_longest_seconds": 90.0}, {"overdue": Level.FAIL}),
        ({"parked": {"outcome_unknown": 2}}, {"parked": Level.WARN}),
        ({"busy": (BusyContract("shop", 1, 3600.0),)}, {"limits": Level.WARN}),
        ({"alerts": {"duplicate_detected": 1}}, {"alerts": Level.FAIL}),
        ({"halted": True}, {"restored": Level.FAIL}),
        ({"holds": ("paused charge 1 of acme",)}, {"holds": Level.WARN}),
    ],
)
def test_a_fleet_that_does_not_move_is_named(
    change: dict[str, object], expected: dict[str, Level]
) -> None:
    assert bad(checks.fleet_findings(replace(FLEET, **change), "0003")) == expected  # type: ignore[arg-type]


def test_who_waits_at_limited_targets_is_told_and_for_how_long() -> None:
    busy = (BusyContract("shop", 12, 3599.0), BusyContract("mail", 1, -0.2))
    (told,) = [
        finding
        for finding in checks.fleet_findings(replace(FLEET, busy=busy), "0003")
        if finding.check == "limits"
    ]
    assert told.level is Level.OK
    assert "12 effects of shop (the last in 60 min), 1 effect of mail (the last now)" in told.text


def test_a_ring_that_lacks_a_stored_key_fails() -> None:
    for change in ({"hmac_key_ids": ("k1", "k0")}, {"payload_key_ids": ("k0",)}):
        findings = list(checks.ring_findings(RING, replace(FLEET, **change)))
        assert bad(findings) == {"key_ring": Level.FAIL}
        assert any("k0" in finding.text for finding in findings)


def test_a_pooler_that_shares_sessions_fails_and_its_port_warns() -> None:
    def judged(url: str, shared: bool | None) -> dict[str, Level]:
        return bad(checks.pooler_findings(url, shared, check="pooler", variable="V"))

    assert judged("postgresql://h:5432/d", False) == {}
    assert judged("postgresql://h:6432/d", False) == {"pooler": Level.WARN}
    assert judged("postgresql://h:5432/d", None) == {"pooler": Level.WARN}
    assert judged("postgresql://h:5432/d", True) == {"pooler": Level.FAIL}


def _document(name: str, **changes: object) -> ContractDocument:
    body = json.loads(catalog_documents()[name].canonical())
    return ContractDocument.parse_yaml(json.dumps(body | changes))


def _holes(document: ContractDocument, resolves: bool = True) -> str:
    findings = checks.contract_findings([document], lambda reference: resolves)
    return " ".join(f.text for f in findings if f.level is not Level.OK)


def test_shipped_contracts_have_no_hole() -> None:
    for document in catalog_documents().values():
        assert _holes(document) == ""


def test_holes_of_contracts_are_named() -> None:
    tight = _document("demo-charge-idempotent", key_retention_seconds=130)
    assert "key_expired" in _holes(tight)
    blind = _document("demo-charge-reconcilable", settlement_bound_seconds=0)
    assert "settlement_bound_seconds" in _holes(blind)
    arguments = {
        "type": "object",
        "properties": {"recipients": {"type": "array", "items": {"type": "string"}}},
    }
    batch = _document("demo-charge-unsafe", arguments=arguments, sensitive=[])
    assert "recipients" in _holes(batch)
    # Members of data are no keywords, and neither is what is meant for readers.
    told = {"title": "t", "x-owner": "shop", "if": True, "then": True, "enum": [{"requierd": 1}]}
    fine = _document("demo-charge-unsafe", arguments=arguments | told, sensitive=[])
    assert "does not know" not in _holes(fine)
    misspelt = {"requierd": ["recipients"], "properties": {"to": {"maxLenght": 5}}}
    schema = {"type": "object"} | misspelt
    hole = _holes(_document("demo-charge-unsafe", arguments=schema, sensitive=[]))
    assert "does not know (maxLenght, requierd)" in hole
    assert "env:EFFECT_BROKER_SECRET_STRIPE" in _holes(
        catalog_documents()["stripe-charge"], resolves=False
    )


def test_no_contract_at_all_is_a_warning() -> None:
    assert bad(checks.contract_findings([], lambda reference: True)) == {"contracts": Level.WARN}


def _recent(tenant: str, tool: str, *keys: str) -> list[RecentKey]:
    return [RecentKey(tenant, tool, key) for key in keys]


def test_suspicious_keys_warn_by_tenant_and_tool_without_being_shown() -> None:
    findings = list(
        key_scope_findings(
            [
                *_recent("acme", "demo.charge", "step-3", "step-4", "turn-5", "order:17:charge"),
                *_recent("acme", "demo.mail", "welcome:17", "mail-1732900000"),
                *_recent("bolt", "demo.charge", "order:18:charge"),
            ]
        )
    )
    first, second = (finding.text for finding in findings)
    assert "3 of 4 recent operation keys of acme for demo.charge: such keys name a place" in first
    assert "step-<n>" in first
    assert "1 of 2 recent operation keys of acme for demo.mail: such keys hold the time" in second
    assert "<word>-<time>" in second
    for finding in findings:
        assert finding.level is Level.WARN
        assert PAGE in str(finding.remedy)
        assert not any(key in finding.text for key in ("step-3", "1732900000", "order:17", "bolt"))


def test_many_tools_with_bad_keys_do_not_bury_the_other_findings() -> None:
    recent = [key for n in range(40) for key in _recent("acme", f"tool.{n}", "step-3")]
    findings = list(key_scope_findings(recent))
    assert len(findings) == 13
    assert "28 keys of 28 tools" in findings[-1].text
