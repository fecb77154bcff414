"""The endpoint of evidence: who is believed, what is kept of a delivery, and how it is listed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from api.deployment import Deployment
from api.webhooks import (
    NAME,
    SECRET,
    SECRET_VARIABLE,
    SECTION,
    Provider,
    apply,
    event,
    hooked,
    only_row,
    shown,
)
from effect_contracts.canonical import BODY_BYTES_MAX

# Who is believed ------------------------------------------------------------------------------


async def _unbelieved(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 404, answer.text
    body: dict[str, Any] = answer.json()
    return {name: value for name, value in body.items() if name != "instance"}


async def test_whoever_is_not_believed_learns_nothing(
    api: httpx.AsyncClient, provider: Provider, doubted: str
) -> None:
    await apply(provider.deployment, hooked("1", "no-hook", tool="other.tool", webhook=None))
    body = json.dumps(event(provider.key_of(doubted))).encode()
    good = provider.signed(body)
    others = {
        "no tenant": ("nobody", NAME, good),
        "no contract": ("acme", "nothing", good),
        "no webhook": ("acme", "no-hook", good),
        "odd names": ("ac%00me", "%2e%2e", good),
        "another tenant's contract": ("globex", "nothing", good),
        "no signature": ("acme", NAME, {}),
        "another secret": (
            "acme", NAME, Provider(provider.http, provider.deployment, secret="x").signed(body),
        ),
        "too old": ("acme", NAME, provider.signed(body, age_seconds=302)),
        "too new": ("acme", NAME, provider.signed(body, age_seconds=-302)),
        "another body": ("acme", NAME, provider.signed(body + b" ")),
    }  # fmt: skip
    seen = []
    for tenant, contract, headers in others.values():
        answer = await provider.http.post(
            f"/v1/evidence/{tenant}/{contract}", content=body, headers=headers
        )
        seen.append(await _unbelieved(answer))
    assert all(body == seen[0] for body in seen)
    assert provider.deployment.count("evidence_inbox") == 0
    assert (await shown(api, doubted))["version"] == 2
    assert (await provider.deliver(body, good)).status_code == 200


async def test_a_repeated_signature_header_is_not_believed(
    provider: Provider, doubted: str
) -> None:
    body = json.dumps(event(provider.key_of(doubted))).encode()
    good = provider.signed(body)["Stripe-Signature"]
    answer = await provider.http.post(
        f"/v1/evidence/acme/{NAME}",
        content=body,
        headers=[("Stripe-Signature", good), ("stripe-signature", good)],
    )
    assert answer.status_code == 404
    assert provider.deployment.count("evidence_inbox") == 0


async def test_either_of_two_secrets_is_believed_and_one_that_is_missing_does_no_harm(
    api: httpx.AsyncClient, provider: Provider, doubted: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    secrets = [f"env:{SECRET_VARIABLE}_NEXT", f"env:{SECRET_VARIABLE}"]
    await apply(provider.deployment, hooked("2", webhook={**SECTION, "secrets": secrets}))
    key = provider.key_of(doubted)
    assert await provider.told(event(key, kind="charge.failed")) == "recorded"
    assert f"{SECRET_VARIABLE}_NEXT cannot be resolved" in caplog.text
    monkeypatch.setenv(f"{SECRET_VARIABLE}_NEXT", "whsec_next")
    following = Provider(provider.http, provider.deployment, secret="whsec_next")
    assert await following.told(event(key, kind="charge.failed")) == "recorded"
    assert await provider.told(event(key)) == "settled"
    assert SECRET not in caplog.text
    assert "whsec_next" not in caplog.text


@pytest.mark.parametrize(
    "reference", ["env:EFFECT_BROKER_SECRET_X", "env:EFFECT_BROKER_KEY_RING", "file:/etc/hostname"]
)
async def test_no_other_secret_of_the_broker_can_be_named(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    monkeypatch.setenv("EFFECT_BROKER_SECRET_X", SECRET)
    monkeypatch.setenv("EFFECT_BROKER_KEY_RING", SECRET)
    await apply(provider.deployment, hooked("2", webhook={**SECTION, "secrets": [reference]}))
    assert (await provider.deliver(event("k" * 43))).status_code == 404


async def test_why_a_delivery_is_refused_is_told_to_the_operator_and_not_each_time(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    body = b"{}"
    for _ in range(5):
        await provider.deliver(body, provider.signed(body, age_seconds=999))
        await provider.deliver(body, {})
    refused = [record.getMessage() for record in caplog.records if "is refused" in record.msg]
    assert [text.rpartition(": ")[2] for text in refused] == [
        "time_outside_tolerance", "header_missing",
    ]  # fmt: skip


# What is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"id":1,"id":2}', b'{"a":NaN}', b"\xff", b"[" * 100 + b"]" * 100]
)
async def test_what_is_signed_and_no_json_is_kept_as_rejected(
    provider: Provider, body: bytes
) -> None:
    for _ in range(2):
        answer = await provider.deliver(body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_payload")
    row = only_row(provider.deployment)
    assert (row["status"], row["code"], row["ciphertext"]) == ("rejected", "body_invalid", None)


@pytest.mark.parametrize(
    "told",
    [
        {"id": "e", "type": "customer.created"},
        {"id": "e", "type": True},
        {"id": "e"},
        ["charge.succeeded"],
        5,
        None,
    ],
)
async def test_what_is_no_word_about_an_effect_is_ignored(provider: Provider, told: Any) -> None:
    assert await provider.told(json.dumps(told).encode()) == "ignored"
    assert only_row(provider.deployment)["code"] == "says_nothing"


async def test_a_body_in_any_script_is_read_as_it_was_signed(
    api: httpx.AsyncClient, provider: Provider, doubted: str
) -> None:
    told = event(provider.key_of(doubted), note="Zoë ☃ \u202e \U0001f4b6", big=2**80)
    assert await provider.told(told) == "settled"
    receipt = (await api.get(f"/v1/effects/{doubted}/receipt")).json()
    assert receipt["result"]["note"] == "Zoë ☃ \u202e \U0001f4b6"
    assert receipt["result"]["big"] == str(2**80)


async def test_a_body_that_is_too_large_is_refused_whoever_sends_it(provider: Provider) -> None:
    body = b'"' + b"x" * BODY_BYTES_MAX + b'"'
    for tenant in ("acme", "nobody"):
        sender = Provider(provider.http, provider.deployment, tenant)
        answer = await sender.deliver(body)
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert provider.deployment.count("evidence_inbox") == 0


async def test_without_a_database_the_sender_is_asked_to_come_again(
    provider: Provider, deployment: Deployment
) -> None:
    told = event("k" * 43)
    headers = provider.signed(json.dumps(told, ensure_ascii=False).encode())
    deployment.execute("ALTER TABLE effect_broker.evidence_inbox RENAME TO elsewhere")
    answer = await provider.deliver(told, headers)
    assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
    assert answer.headers["retry-after"]
    deployment.execute("ALTER TABLE effect_broker.elsewhere RENAME TO evidence_inbox")
    assert (await provider.deliver(told, headers)).json()["status"] == "unmatched"


# The listing ----------------------------------------------------------------------------------


async def test_deliveries_are_listed_newest_first_page_by_page(
    api: httpx.AsyncClient, operator: httpx.AsyncClient, provider: Provider, doubted: str
) -> None:
    key = provider.key_of(doubted)
    sent = [event(key, kind="charge.failed"), event(key), {"id": "e", "type": "t"}]
    for told in sent:
        await provider.told(told)
    theirs = Provider(provider.http, provider.deployment, "globex")
    await theirs.told({"id": "g", "type": "t"})
    listed, cursor = [], None
    while True:
        query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = (await operator.get("/v1/evidence", params=query)).json()
        listed += page["deliveries"]
        if (cursor := page["cursor"]) is None:
            break
    assert [line["senders_id"] for line in listed] == [told["id"] for told in reversed(sent)]
    assert [line["status"] for line in listed] == ["ignored", "settled", "recorded"]
    assert set(listed[0]) == {
        "delivery_id", "contract", "senders_id", "body_digest", "received_at", "status", "code",
        "effect_id", "decided_at", "next_match_at",
    }  # fmt: skip
    for query, count in (
        ({"status": "settled"}, 1),
        ({"status": ["settled", "ignored"]}, 2),
        ({"effect_id": doubted}, 2),
        ({"contract": NAME}, 3),
        ({"contract": "other"}, 0),
    ):
        found = (await operator.get("/v1/evidence", params=query)).json()["deliveries"]
        assert len(found) == count, query
    for query in ({"cursor": "x"}, {"status": "x"}, {"effect_id": "x"}, {"nonsense": "1"}):
        assert (await operator.get("/v1/evidence", params=query)).status_code == 400, query
    refused = await api.get("/v1/evidence")
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    anonymous = await provider.http.get("/v1/evidence")
    assert anonymous.status_code == 401
