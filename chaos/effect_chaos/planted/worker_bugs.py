"""Bugs of the worker. Each function plants one, in this process, and names it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg

import effect_adapters.http as http_adapter
from effect_adapters.base import Adapter, Answer, Budget, DispatchCall, Finding
from effect_adapters.http.exchange import OutgoingRequest
from effect_adapters.postgres import PostgresFunctionAdapter
from effect_broker import repair
from effect_broker.faultpoints import FaultPoint
from effect_broker.protocol import changes, conclusion, steps
from effect_broker.protocol.changes import Grant
from effect_broker.protocol.conclusion import Next, View
from effect_broker.protocol.ports import Advance, Change, Ports, Snapshot
from effect_chaos.planted.patching import replaced
from effect_contracts import decide as decisions
from effect_contracts.decide import Action, Decision, Reason
from effect_contracts.facts import Outcome, SafetyClass, Verdict
from effect_contracts.life import LifeEvent

_TABLE = decisions._Case


def _unknown_of_unsafe(decide: Callable[[Any], Decision]) -> None:
    """Replace what is decided for an unsafe effect whose answer was lost."""

    def make(honest: Callable[[Any], Decision]) -> Callable[[Any], Decision]:
        def decided(case: Any) -> Decision:
            unsafe = case.policy.safety is SafetyClass.UNSAFE
            return decide(case) if unsafe else honest(case)

        return decided

    replaced(_TABLE, "_unknown_decision", make)


def blind_resend() -> None:
    def again(case: Any) -> Decision:
        assert isinstance(case, _TABLE)
        return case._dispatch(Reason.SAME_KEY_AGAIN, 11)

    _unknown_of_unsafe(again)


def unsafe_failed() -> None:
    def failed(case: Any) -> Decision:
        assert isinstance(case, _TABLE)
        return case._fail(Reason.NEVER_SENT, 10)

    _unknown_of_unsafe(failed)


def never_parks() -> None:
    def later(case: Any) -> Decision:
        assert isinstance(case, _TABLE)
        at = case.now + timedelta(days=1)
        return Decision(Action.WAIT, LifeEvent.OUTCOME_LOST, Reason.OUTCOME_UNKNOWN, 11, at=at)

    _unknown_of_unsafe(later)


def early_negative() -> None:
    def make(_: object) -> Callable[..., datetime | None]:
        def at_once(attempts: Any, *_: object) -> datetime | None:
            return min((a.started_at for a in attempts if a.may_have_sent), default=None)

        return at_once

    replaced(decisions, "conclusive_from", make)


def key_never_expires() -> None:
    replaced(_TABLE, "_key_lives_through", lambda _: lambda case, at: True)


def _every_request(change: Callable[[OutgoingRequest], OutgoingRequest]) -> None:
    """Change every request just before it is sent."""

    def make(honest: Callable[..., OutgoingRequest]) -> Callable[..., OutgoingRequest]:
        return lambda *given: change(honest(*given))

    replaced(http_adapter, "outgoing", make)


def new_key() -> None:
    def minted(request: OutgoingRequest) -> OutgoingRequest:
        headers = tuple(
            (name, uuid4().hex.encode() if name.lower() == b"idempotency-key" else value)
            for name, value in request.headers
        )
        return replace(request, headers=headers)

    _every_request(minted)


def new_body() -> None:
    rendered = 0

    def anew(request: OutgoingRequest) -> OutgoingRequest:
        nonlocal rendered
        rendered += 1
        return replace(request, body=request.body + b" " * rendered)

    _every_request(anew)


def server_error_is_no() -> None:
    def make(honest: Callable[..., Answer]) -> Callable[..., Answer]:
        def trusting(*given: Any) -> Answer:
            answer = honest(*given)
            if answer.status is not None and answer.status >= 500:
                return replace(answer, outcome=Outcome.RETRYABLE)
            return answer

        return trusting

    replaced(http_adapter, "answer_of", make)


def mismatch_is_commit() -> None:
    def make(honest: Callable[..., Any]) -> Callable[..., Any]:
        async def trusting(*given: Any) -> Finding:
            finding: Finding = await honest(*given)
            if finding.verdict is Verdict.MISMATCH:
                return replace(finding, verdict=Verdict.COMMITTED)
            return finding

        return trusting

    replaced(http_adapter.HttpAdapter, "probe", make)


def no_fence() -> None:
    def make(honest: Callable[..., Change[Grant]]) -> Callable[..., Change[Grant]]:
        def unfenced(
            snapshot: Snapshot, *, ordinal: int, expected_version: int, **rest: Any
        ) -> Change[Grant]:
            def decided_before(*_: object) -> Decision:
                return Decision(
                    Action.DISPATCH,
                    LifeEvent.ATTEMPT_STARTED,
                    Reason.SAME_KEY_AGAIN,
                    11,
                    ordinal=ordinal,
                )

            fresh = getattr(changes, "decide")  # noqa: B009 - imported there, not exported
            setattr(changes, "decide", decided_before)  # noqa: B010
            try:
                version = snapshot.intent.version
                return honest(snapshot, ordinal=ordinal, expected_version=version, **rest)
            finally:
                setattr(changes, "decide", fresh)  # noqa: B010

        return unfenced

    replaced(changes, "grant_attempt", make)


def no_reconcile() -> None:
    def make(_: object) -> Callable[..., Any]:
        async def nothing(*_: object, **__: object) -> int:
            return 0

        return nothing

    replaced(repair, "reconcile", make)


def no_next_action() -> None:
    def make(honest: Callable[..., Change[View]]) -> Callable[..., Change[View]]:
        def forgetful(snapshot: Snapshot, facts: Any, decision: Decision, *rest: Any) -> Any:
            change = honest(snapshot, facts, decision, *rest)
            if decision.action is not Action.WAIT:
                return change
            writes = tuple(
                replace(write, next_action_at=None) if isinstance(write, Advance) else write
                for write in change.writes
            )
            return Change(replace(change.result, next=Next.END), writes)

        return forgetful

    replaced(conclusion, "write_decision", make)


def success_first() -> None:
    def make(_: object) -> Callable[..., Any]:
        async def premature(ports: Ports, adapter: Adapter, call: DispatchCall) -> View:
            hoped = Answer(Outcome.COMMITTED, "committed", external_id="hoped_for")
            seen = await steps._recorded(ports, call, hoped)
            await adapter.dispatch(call)
            return seen

        return premature

    replaced(steps, "_sent", make)


def send_first() -> None:
    def make(_: object) -> Callable[..., Any]:
        async def reckless(
            ports: Ports, tenant_id: UUID, effect_id: UUID, version: int, ordinal: int
        ) -> View:
            snapshot = await ports.store.load(tenant_id, effect_id)
            document = snapshot.document
            seconds = document.policy().attempt_deadline_seconds
            adapter = ports.adapters[document.adapter.kind]
            assert not hasattr(adapter, "mutate"), "it has no mutation to send"
            call = DispatchCall(
                effect_id=effect_id,
                tenant_id=tenant_id,
                attempt_id=ports.new_id(),
                ordinal=ordinal,
                downstream_key=snapshot.intent.downstream_key,
                wire=steps._unsealed_wire(ports, snapshot),
                document=document,
                budget=Budget(ports.clock.boot_seconds() + seconds, ports.clock.boot_seconds),
                reach=ports.reach,
            )
            answer = await adapter.dispatch(call)
            ports.reach(FaultPoint.AFTER_TARGET_ANSWER)
            permission = await steps._granted(ports, tenant_id, effect_id, version, ordinal)
            if permission is None:
                return steps._reload(await ports.store.load(tenant_id, effect_id), Next.RELOAD)
            granted = replace(call, attempt_id=permission.attempt_id)
            return await steps._recorded(ports, granted, answer)

        return reckless

    replaced(steps, "_dispatched", make)


def mutation_apart() -> None:
    def make(honest: Callable[..., Any]) -> Callable[..., Any]:
        async def apart(adapter: PostgresFunctionAdapter, _: object, call: DispatchCall) -> Answer:
            url = os.environ["EFFECT_BROKER_WORKER_DATABASE_URL"]
            async with await psycopg.AsyncConnection.connect(url) as connection:
                await connection.execute("SELECT 1")  # opens the transaction
                answer: Answer = await honest(adapter, connection, call)
            return answer

        return apart

    replaced(PostgresFunctionAdapter, "mutate", make)
