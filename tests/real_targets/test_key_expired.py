"""Charge and refund whose key the target has forgotten: asked for in the list, sent again only if
it is not there.

Every worker is killed while the target is silent, and comes back when the key is no longer good. A
relay before the target keeps every request; what was made is read from the target alone.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from effect_broker.proof.broker import wait_until
from hosting.scenes import Scene
from real_targets.cases import ASKED, Case, receipt_of, version
from real_targets.contracts import stripe_contract_text
from real_targets.programs import StripeMock
from real_targets.relay import Relay, relay

# Two whole attempts of 2.2 s, their wait and the transit fit into it, as a document has to state.
RETENTION_SECONDS = 5.0
FORGETFUL: dict[str, Any] = {
    **ASKED,
    "attempt_deadline_seconds": 2.0,
    "key_retention_seconds": RETENTION_SECONDS,
    "retry": {"attempts_max": 2, "backoff_initial_seconds": 0.1, "backoff_cap_seconds": 1.0},
}
CHARGE: dict[str, Any] = {"amount": 4200, "currency": "eur", "source": "tok_visa"}


def test_after_the_key_has_expired_the_list_is_asked_and_what_is_in_it_is_not_sent_again(
    scene: Scene, stripe_mock: StripeMock
) -> None:
    refunded = stripe_mock.http.post("/v1/charges", data=CHARGE).json()["id"]
    with relay(stripe_mock.port) as way, relay(stripe_mock.port) as gap:
        way.holding = gap.dropping = True
        charge = _case(scene, way, "stripe-charge", "late:1", CHARGE)
        refund = _case(scene, way, "stripe-refund", "late:2", {"charge": refunded, "amount": 1000})
        never = _case(scene, gap, "stripe-charge", "late:3", {**CHARGE, "amount": 700}, ".never")
        scene.kill_workers()  # none begins before the last is there
        effect_ids = [case.submit() for case in (charge, refund, never)]
        scene.ensure_workers(1)
        wait_until(lambda: (len(way.requests), len(gap.requests)) == (2, 1) or None, "all sent")
        wait_until(lambda: (_amounts(stripe_mock, refunded) == MADE) or None, "two are made")
        scene.kill_workers()
        way.holding = gap.dropping = False
        for effect_id in effect_ids:
            [attempt] = scene.attempts(effect_id)
            forgotten_at = attempt["started_at"] + timedelta(seconds=RETENTION_SECONDS)
            scene.wait_for("the key's end", "SELECT clock_timestamp() > %s", forgotten_at)
        scene.ensure_workers(2)
        effects = scene.settled(effect_ids)
        assert charge.resubmit() == (200, effect_ids[0])
        sent, asked = _by_method(way)
        sent_anew, asked_before = _by_method(gap)
    assert [effect["state"] for effect in effects] == ["succeeded"] * 3
    # What is in the list is there once, and nothing was sent again.
    receipts = [receipt_of(scene, effect_id) for effect_id in effect_ids]
    assert [(r["source"], r["attempts"]) for r in receipts[:2]] == [("probe", 1)] * 2
    assert sorted(sent) == [b"/v1/charges", b"/v1/refunds"]
    assert set(asked) == {b"/v1/charges", b"/v1/refunds"}
    # What is not was sent once more, after the list had denied it.
    assert receipts[2]["attempts"] == 2
    assert (sent_anew, set(asked_before)) == ([b"/v1/charges"] * 2, {b"/v1/charges"})
    assert _amounts(stripe_mock, refunded) == ([700, 4200, 4200], [1000])


# One charge is the test's own, which is refunded.
MADE = ([4200, 4200], [1000])


def _case(
    scene: Scene, way: Relay, name: str, key: str, arguments: dict[str, Any], suffix: str = ""
) -> Case:
    named = {"name": name + suffix.replace(".", "-"), "tool": name.replace("-", ".") + suffix}
    text = stripe_contract_text(way.origin, name, version=version(way), **named, **FORGETFUL)
    return Case(scene, text, key, arguments)


def _amounts(target: StripeMock, refunded: str) -> tuple[list[int], list[int]]:
    """Return the amounts of all charges and of the refunds of one, as the target lists them."""
    refunds = target.http.get("/v1/refunds", params={"charge": refunded}).json()["data"]
    charges = sorted(charge["amount"] for charge in target.charges())
    return charges, [refund["amount"] for refund in refunds]


def _by_method(way: Relay) -> tuple[list[bytes], list[bytes]]:
    """Return the paths that were written to and those that were read."""
    lines = [request.split(b" ", 2)[:2] for request in way.requests]
    paths = [(method, path.partition(b"?")[0]) for method, path in lines]
    return [p for m, p in paths if m == b"POST"], [p for m, p in paths if m == b"GET"]
