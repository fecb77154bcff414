"""`effect-broker evidence`: a sample is tried before it is used, deliveries are listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection
from psycopg.rows import TupleRow

from api.webhooks import SECRET_VARIABLE, SECTION, hooked
from cli.commands import Cli

# The vector of the Standard Webhooks libraries; see tests/contracts/test_webhook_signature.py.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"test": 2432232314}'
HEADERS = (
    "webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp: 1614265330",
    "Webhook-Signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
)
SIGNED_AT = "2021-02-25T15:02:10+00:00"


@pytest.fixture
def sample(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sample:
    """A contract and a delivery in files, the secret in the environment."""
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    return Sample(cli, tmp_path)


class Sample:
    """Tries the published delivery on a contract."""

    def __init__(self, cli: Cli, directory: Path) -> None:
        self._cli = cli
        self._directory = directory

    def __call__(
        self,
        *options: str,
        headers: tuple[str, ...] = HEADERS,
        body: bytes = BODY,
        arguments: Any = None,
        **section: Any,
    ) -> Any:
        webhook = {
            **SECTION,
            "scheme": {"kind": "standard_webhooks"},
            "committed": "test == `2432232314`",
            "failed": None,
            "delivery_id": None,
            "key_match": {"kind": "field", "path": "to_string(test)"},
            "agree": {"/amount": "test"},
            "extraction": {"external_id": "test"},
            **section,
        }
        contract = self._directory / "contract.yaml"
        contract.write_bytes(hooked(webhook=webhook).canonical())
        given = [f"--header={line}" for line in headers]
        if arguments is not None:
            (self._directory / "arguments.json").write_text(json.dumps(arguments))
            given += ["--arguments", str(self._directory / "arguments.json")]
        return self._cli(
            "evidence", "simulate", "--contract", contract, "--body", "-", *given, *options,
            stdin=body,
        )  # fmt: skip


def test_a_sample_tells_what_it_would_prove(sample: Sample) -> None:
    ended = sample("--json")
    assert ended.code == 0, ended.err
    assert ended.json["signature"] == "good"
    assert ended.json["says"] == "committed"
    assert ended.json["senders_id"] == "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert ended.json["external_id"] == "2432232314"
    assert ended.json["agree"] == {"/amount": 2432232314}
    assert "form of this contract's keys" in ended.json["outcome"]
    assert "signature" in sample().out


def test_arguments_are_compared(sample: Sample) -> None:
    arguments = {"order": "1", "amount": 2432232314, "currency": "eur"}
    agreeing = sample("--json", arguments=arguments)
    assert (agreeing.code, agreeing.json["disagrees"]) == (0, [])
    differing = sample("--json", arguments=arguments | {"amount": 1})
    assert (differing.code, differing.json["disagrees"]) == (1, ["/amount"])


@pytest.mark.parametrize(
    ("change", "signature"),
    [
        ({"body": BODY + b" "}, "signature_wrong"),
        ({"headers": HEADERS[:2]}, "header_missing"),
        ({"headers": (*HEADERS, HEADERS[0])}, "header_repeated"),
        ({"secrets": ["env:EFFECT_BROKER_SECRET_OF_WORKERS"]}, "no_secret"),
    ],
)
def test_what_is_not_believed_is_told_with_the_reason(
    sample: Sample, change: dict[str, Any], signature: str
) -> None:
    ended = sample("--json", **change)
    assert (ended.code, ended.json["signature"]) == (1, signature)
    assert SECRET not in ended.out + ended.err


def test_the_tolerance_is_judged_as_of_a_moment(sample: Sample) -> None:
    assert sample("--json", "--at", SIGNED_AT).json["signature"] == "good"
    late = sample("--json", "--at", "2021-02-25T15:08:00+00:00")
    assert (late.code, late.json["signature"]) == (1, "time_outside_tolerance")


def test_a_body_that_is_no_json_is_told(sample: Sample) -> None:
    ended = sample("--json", body=b"{")
    assert (ended.code, "no JSON" in ended.json["outcome"]) == (1, True)


@pytest.mark.parametrize(
    ("options", "said", "code"),
    [
        (("--header", "nonsense"), "Name: value", 2),
        (("--at", "yesterday"), "--at", 2),
        (("--at", "2021-02-25T15:02:10"), "offset", 2),
    ],
)
def test_a_wrong_option_is_told(
    sample: Sample, options: tuple[str, ...], said: str, code: int
) -> None:
    assert said in sample(*options).refused(code)


def test_a_contract_without_a_webhook_is_told(cli: Cli, tmp_path: Path) -> None:
    contract = tmp_path / "contract.yaml"
    contract.write_bytes(hooked(webhook=None).canonical())
    ended = cli("evidence", "simulate", "--contract", contract, "--body", tmp_path / "nothing")
    assert "docs/webhooks.md" in ended.refused()


def test_deliveries_are_listed(broker: Cli, superuser: Connection[TupleRow]) -> None:
    broker("tenants", "create", "acme")
    assert broker("contracts", "apply", "-", stdin=hooked().canonical()).code == 0
    superuser.execute(
        "INSERT INTO effect_broker.evidence_inbox (delivery_id, tenant_id, contract_name,"
        " contract_version, contract_digest, senders_id, body_digest, received_at, status, code,"
        " decided_at) SELECT gen_random_uuid(), t.tenant_id, c.name, c.version, c.digest,"
        " 'evt_' || n, sha256(''), now() - n * interval '1 s',"
        " CASE n WHEN 1 THEN 'ignored' ELSE 'rejected' END, 'x', now()"
        " FROM effect_broker.tenants t, effect_broker.contracts c, generate_series(1, 3) n"
    )
    listed = broker("evidence", "list", "--json", "--limit", "2").json
    assert [line["senders_id"] for line in listed["deliveries"]] == ["evt_1", "evt_2"]
    following = broker("evidence", "list", "--json", "--cursor", listed["cursor"]).json
    assert [line["senders_id"] for line in following["deliveries"]] == ["evt_3"]
    assert following["cursor"] is None
    only = broker("evidence", "list", "--status", "ignored")
    assert "evt_1" in only.out
    assert "evt_2" not in only.out
    assert "--cursor" in broker("evidence", "list", "--cursor", "x").refused()
    assert "UUID" in broker("evidence", "list", "--effect", "x").refused(2)
