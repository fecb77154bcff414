"""Traces cross API, queue and workers, and hold nothing that is secret; all in real processes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effect_broker.faultpoints import FaultPoint
from effect_broker.proof.broker import ProofBroker, wait_until
from effect_broker.proof.contracts import tuned
from effect_broker.tracing import key_digest
from effect_contracts.document import ContractDocument
from hosting.scenes import MODES, Scene
from observability.collector import Collector, SeenSpan
from observability.pages import api, page_of
from postgres import Database, RunningServer, clone, drop_database

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLERS_SPAN = "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{CALLERS_SPAN}-01"
MARK = "MARKER-"
SECRET = f"{MARK}secret-9f2e"
ANSWER = f"{MARK}answer-9f2e"
KINDS = {
    # kind: safety, what the target does, what is to come of it
    "told": ("idempotent", "ok", "succeeded"),
    "refused": ("idempotent", f'status(402, {{"error": "{ANSWER}"}})', "failed_final"),
    "probed": ("reconcilable", "commit;RST", "succeeded"),
    "unclear": ("unsafe", f'commit;status(500, {{"error": "{ANSWER}"}})', "outcome_unknown"),
}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """Where the spans of this module's processes arrive."""
    with Collector() as listening:
        yield listening


@pytest.fixture(scope="module")
def scene(
    running_server: RunningServer, template_name: str, collector: Collector
) -> Iterator[Scene]:
    """A broker that says all it can: spans, numbers, and logs for programs."""
    database: Database = clone(running_server, template_name)
    directory = Path(tempfile.mkdtemp(prefix="effect-broker-traces-"))
    environment = {
        **collector.environment,
        "EFFECT_BROKER_METRICS_PORT": "0",
        "EFFECT_BROKER_LOG_FORMAT": "json",
        "EFFECT_BROKER_LOG_LEVEL": "DEBUG",
        "EFFECT_BROKER_SECRET_PROOF": SECRET,
    }
    broker = ProofBroker(directory, database.superuser_url, environment=environment, migrated=True)
    with broker, Scene(broker) as made:
        broker.prepare()
        broker.start_api()
        yield made
    shutil.rmtree(directory, ignore_errors=True)
    drop_database(running_server, database.name)


def offer(scene: Scene, kind: str) -> str:
    """Let the target serve a kind that wants a token; return the tool."""
    safety, plan, _ = KINDS[kind]
    scene.broker.target.client.set_mode(kind, MODES[safety])
    settings: dict[str, Any] = {"settlement_bound_seconds": 1.0} if safety == "reconcilable" else {}
    document = tuned(f"demo-charge-{safety}", scene.broker.target.url, kind, **settings)
    members = json.loads(document.canonical())
    members["adapter"]["auth"] = {"kind": "bearer", "token": "env:EFFECT_BROKER_SECRET_PROOF"}
    scene.broker.apply(ContractDocument.parse_yaml(json.dumps(members)))
    scene.broker.target.client.script(plan, kind=kind)
    return document.tool


def submit(scene: Scene, kind: str, tool: str, **headers: str) -> str:
    """Submit an effect full of markers, as a caller with a trace of its own."""
    arguments = {
        "order": f"{MARK}argument",
        "amount": 7,
        "currency": "eur",
        "customer_email": f"{MARK}address@example.org",
    }
    body = {"operation_key": f"{MARK}key:{kind}", "tool": tool, "arguments": arguments}
    sent = {
        "traceparent": HEADER,
        "tracestate": f"vendor={MARK}state",
        "baggage": f"user={MARK}baggage",
        "x-request-id": f"{MARK}header",
        **headers,
    }
    answer = scene.broker.http.post("/v1/effects", json=body, headers=sent)
    assert answer.status_code in {200, 202}, answer.text
    return str(answer.json()["effect_id"])


@pytest.fixture(scope="module")
def told(scene: Scene, collector: Collector) -> dict[str, str]:
    """Effects of all kinds, by kind; the first loses its worker after the target has answered."""
    tools = {kind: offer(scene, kind) for kind in KINDS}
    scene.broker.arm(FaultPoint.AFTER_TARGET_ANSWER)
    (lost,) = scene.start_workers(1)
    effects = {"told": submit(scene, "told", tools["told"])}
    scene.broker.wait_fired(FaultPoint.AFTER_TARGET_ANSWER)
    assert lost.wait_ended() != 0
    scene.start_workers(1)
    effects |= {kind: submit(scene, kind, tools[kind]) for kind in KINDS if kind != "told"}
    for kind, (_, _, state) in KINDS.items():
        assert scene.broker.settled(effects[kind])["state"] == state
    drifted = {"operation_key": f"{MARK}key:told", "tool": tools["told"], "arguments": {"a": 1}}
    assert scene.broker.http.post("/v1/effects", json=drifted).status_code == 409
    for kind, effect_id in effects.items():
        wanted = "effect.probe" if kind == "probed" else "effect.dispatch"
        # Spans come in batches: the last one of a kind is the one that has told the end.
        ended = KINDS[kind][2]
        wait_until(
            lambda e=effect_id, w=wanted, s=ended: (  # type: ignore[misc]
                any(span.told("state") == s for span in named(seen(collector, e, w), w)) or None
            ),
            "the last span of an effect",
        )
    return effects


def seen(collector: Collector, effect_id: str, wanted: str = "effect.submit") -> list[SeenSpan]:
    """The spans of an effect, once one of the wanted name is among them."""

    def found() -> list[SeenSpan] | None:
        spans = [s for s in collector.spans if s.told("effect_id") == effect_id]
        return spans if named(spans, wanted) else None

    return wait_until(found, "the spans of an effect")


def named(spans: list[SeenSpan], name: str) -> list[SeenSpan]:
    return [span for span in spans if span.name == name]


def test_every_step_is_a_span_of_the_callers_trace_below_the_submit(
    told: dict[str, str], collector: Collector
) -> None:
    spans = seen(collector, told["told"])
    assert {span.trace_id for span in spans} == {TRACE}
    (submit_span,) = named(spans, "effect.submit")
    assert (submit_span.process, submit_span.parent_id) == ("api", CALLERS_SPAN)
    steps = [span for span in spans if span.name != "effect.submit"]
    assert {span.process for span in steps} == {"worker"}
    assert {span.parent_id for span in steps} == {submit_span.span_id}
    assert {"effect.reserve", "effect.dispatch"} <= {span.name for span in steps}


def test_a_worker_that_takes_over_goes_on_in_the_same_trace(
    told: dict[str, str], collector: Collector
) -> None:
    dispatches = named(seen(collector, told["told"]), "effect.dispatch")
    (second,) = [span for span in dispatches if span.told("ordinal") == 2]
    assert second.told("outcome") == "committed"
    assert second.told("state") == "succeeded"
    assert second.told("receipt_id")
    assert second.events == ("attempt_started", "outcome_recorded")


def test_spans_name_the_contract_and_codes_and_a_digest_of_the_key(
    told: dict[str, str], collector: Collector
) -> None:
    for kind, (safety, _, _) in KINDS.items():
        spans = seen(collector, told[kind])
        # A run begins without reading the effect, and its first span can tell nothing of it. Each
        # worker that enters the run begins it anew.
        unread = [span for span in spans if span.told("tool") is None]
        assert {span.name for span in unread} == {"effect.reserve"}
        assert len(unread) <= (2 if kind == "told" else 1)
        for span in spans:
            if span in unread:
                continue
            assert span.told("operation_key_digest") == key_digest(f"{MARK}key:{kind}")
            assert span.told("tool") == f"proof.{kind}"
            assert span.told("safety") == safety
            assert span.told("contract_version")
    (refused,) = named(seen(collector, told["refused"]), "effect.dispatch")
    assert (refused.told("outcome"), refused.told("status")) == ("rejected", 402)
    probes = named(seen(collector, told["probed"]), "effect.probe")
    assert "committed" in {span.told("verdict") for span in probes}


def test_a_replay_and_a_refusal_are_spans_of_their_own_callers(
    scene: Scene, told: dict[str, str], collector: Collector
) -> None:
    other = "1" * 32
    submit(scene, "told", "proof.told", traceparent=f"00-{other}-{CALLERS_SPAN}-01")

    def replays() -> list[SeenSpan] | None:
        return [s for s in collector.spans if s.trace_id == other] or None

    (replay,) = wait_until(replays, "the span of the replay")
    assert replay.told("replayed") is True
    assert scene.intent(told["told"])["traceparent"].split("-")[1] == TRACE
    conflicts = [s for s in collector.spans if s.told("problem") == "payload_conflict"]
    assert len(conflicts) == 1
    assert conflicts[0].trace_id not in {TRACE, other}


def test_no_span_holds_what_is_secret(told: dict[str, str], collector: Collector) -> None:
    assert any(told["told"].encode() in body for body in collector.bodies), "the search finds"
    assert [body for body in collector.bodies if MARK.encode() in body] == []


def test_no_number_holds_what_is_secret(scene: Scene, told: dict[str, str]) -> None:
    for process in (api(scene), scene.workers[-1]):
        text = page_of(process).text
        assert "proof.told" in text
        assert MARK not in text
        assert not any(effect_id in text for effect_id in told.values())


def test_no_line_of_a_log_holds_what_is_secret(scene: Scene, told: dict[str, str]) -> None:
    logs = {
        path.name: path.read_text()
        for path in scene.broker.directory.glob("*.log")
        if not path.name.startswith("target")
    }
    assert len(logs) >= 3
    assert [name for name, text in logs.items() if MARK in text] == []
    lines: list[dict[str, Any]] = [
        json.loads(line)
        for text in logs.values()
        for line in text.splitlines()
        if line.startswith("{")
    ]
    # Both workers of that effect have spoken: the dead one, and the one that took over. By which
    # loop its run came back is a matter of who was first, and not always a line.
    ready = {line["executor_id"] for line in lines if line["event"] == "worker_ready"}
    assert len(ready) == 2
    assert {attempt["executor_id"] for attempt in scene.attempts(told["told"])} == ready
