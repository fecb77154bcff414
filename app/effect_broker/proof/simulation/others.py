"""Others who act on effects in a simulated world: persons, callers, and the target itself.

Each is an actor as a run is: it looks, stands still for as long as the scheduler likes, and writes
by the shipped plan of its surface. Persons and webhooks tell the truth about what they saw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from effect_adapters.base import Finding
from effect_broker.proof.simulation.coroutines import stop
from effect_broker.proof.simulation.processes import Actor, ProcessStore, SimulatedProcess
from effect_broker.proof.simulation.scope import Fault, sample
from effect_broker.proof.simulation.store import ARGUMENTS
from effect_broker.protocol import changes, resolution, webhook, wishes
from effect_broker.protocol.ports import Change, Snapshot
from effect_broker.protocol.resolution import Resolution
from effect_contracts.facts import Conclusion, EvidenceSource, SafetyClass, Verdict
from effect_contracts.life import is_final

if TYPE_CHECKING:
    from effect_broker.proof.simulation.world import World

# The step of an actor who resolves, so that the judge knows whose decision is fenced.
OPERATOR = "operator"

# Nobody reads what a simulated person writes down.
_SAID = b"{}"


def start_other(world: World, fault: Fault, process: SimulatedProcess, effect_id: UUID) -> None:
    """Let somebody act on an effect, through this process."""
    acts: dict[Fault, Callable[[World, Actor, UUID], Coroutine[Any, Any, None]]] = {
        Fault.OPERATOR: _resolves,
        Fault.GIVE_UP: _gives_up,
        Fault.WEBHOOK: _tells,
        Fault.STRANGE_NOTICE: _tells_strangely,
        Fault.CANCEL: _cancels,
        Fault.LOOK: _asks_to_look,
    }
    step = OPERATOR if fault in {Fault.OPERATOR, Fault.GIVE_UP} else fault.value
    world.add_actor(
        Actor(_NAMES[fault], process, step=step), lambda actor: acts[fault](world, actor, effect_id)
    )


_NAMES = {
    Fault.OPERATOR: "an operator",
    Fault.GIVE_UP: "an operator",
    Fault.WEBHOOK: "a webhook",
    Fault.STRANGE_NOTICE: "a webhook",
    Fault.CANCEL: "the caller",
    Fault.LOOK: "an operator",
}


async def _resolves(world: World, actor: Actor, effect_id: UUID) -> None:
    """A person looks at the target, and later says what was there."""
    snapshot = world.store.snapshot(effect_id)
    if not snapshot.attempts or is_final(snapshot.intent.state) or not _patient(world, effect_id):
        return
    # Without a declared bound, a person knows better than to trust a look-up that may lag.
    bounded = world.policy.settlement_bound_seconds is not None
    found = world.entries(effect_id, snapshot.intent.target_identity or "", visible=bounded)
    if len(found) > 1:
        return
    conclusion = Conclusion.COMMITTED if found else Conclusion.NOT_COMMITTED
    external_id = found[0].external_id if found else None
    world.tell(f"looks at the target on version {snapshot.intent.version}: {conclusion}")
    await _concludes(world, actor, snapshot, conclusion, external_id)


def _patient(world: World, effect_id: UUID) -> bool:
    """Whether the person waits for what may be on the wire, where no bound is declared.

    Nothing in such a contract says how long a look may be wrong; a person has to know that.
    """
    if world.policy.settlement_bound_seconds is not None or world.allows(Fault.EAGER_OPERATOR):
        return True
    sent_at = max((s.at for s in world.sends if s.effect_id == effect_id), default=0.0)
    return world.seconds > sent_at + world.policy.transit_seconds


async def _gives_up(world: World, actor: Actor, effect_id: UUID) -> None:
    """A person ends the effect as failed, whatever has happened."""
    snapshot = world.store.snapshot(effect_id)
    if not is_final(snapshot.intent.state):
        await _concludes(world, actor, snapshot, Conclusion.FAILED, None)


async def _concludes(
    world: World,
    actor: Actor,
    snapshot: Snapshot,
    conclusion: Conclusion,
    external_id: str | None,
) -> None:
    process = actor.process
    actor.known_version = snapshot.intent.version
    statement = Resolution(
        decision_id=f"decision-{process.new_id().int:x}",
        conclusion=conclusion,
        expected_version=snapshot.intent.version,
        observed_at=snapshot.now,
        external_id=external_id,
        reason="seen",
        content=_SAID,
        digest=hashlib.sha256(_SAID).digest(),
        actor="operator:simulation",
    )
    await stop(world.seconds + (world.delay() if world.choices.of(2) else 0.0))
    plan = partial(
        resolution.resolve,
        resolution=statement,
        evidence_id=process.new_id(),
        receipt_id=process.new_id(),
    )
    resolved = await _changes(world, actor, snapshot.intent.effect_id, plan)
    if resolved.refusal is not None:
        world.tell(f"is refused: {resolved.refusal}")


async def _tells(world: World, actor: Actor, effect_id: UUID) -> None:
    """The target tells of what it has made."""
    snapshot = world.store.snapshot(effect_id)
    found = world.entries(effect_id, snapshot.intent.target_identity or "")
    if not found or not snapshot.attempts:
        return
    process = actor.process
    plan = partial(
        changes.add_evidence,
        evidence_id=process.new_id(),
        source=EvidenceSource.WEBHOOK,
        finding=Finding(Verdict.COMMITTED, "webhook", tuple(e.external_id for e in found)),
        began_at=snapshot.now,
        covers_through=len(snapshot.attempts),
        target_identity=None,
        result=None,
        result_digest=None,
        receipt_id=process.new_id(),
        actor="webhook:simulation",
    )
    await _changes(world, actor, effect_id, plan)


async def _tells_strangely(world: World, actor: Actor, effect_id: UUID) -> None:
    """The target tells of something else than our object; the shipped rules read the delivery."""
    process, received_at = actor.process, world.now()
    told = _STRANGE[world.choices.of(len(_STRANGE))]
    world.tell(f"tells of {told.replace('_', ' ')}")

    def plan(snapshot: Snapshot) -> Change[Any]:
        key = snapshot.intent.downstream_key
        body = {"type": "made", "key": key, "amount": ARGUMENTS["amount"], "id": "sim_strange"}
        if told == _ANOTHERS_KEY:
            body["key"] = key[:-1] + ("0" if key[-1] != "0" else "1")
        elif told == _OTHER_CONTENT:
            body["amount"] = 4
        elif told == _A_FAILURE:
            body["type"] = "failed"
        elif any(a.fact.may_have_sent for a in snapshot.attempts):
            return Change(None)  # a copy of our key is strange only where nothing has left
        finding = webhook.find(_READING, key, dict(ARGUMENTS), body)
        assert finding is not None, "every delivery here is a word of an effect"
        if finding.verdict is Verdict.MISMATCH or told == _A_FAILURE:
            world.judge.shown_strange(effect_id)
        return webhook.deliver(
            snapshot,
            delivery_id=process.new_id(),
            received_at=received_at,
            finding=finding,
            result=None,
            result_digest=None,
            receipt_id=process.new_id(),
        )

    await _changes(world, actor, effect_id, plan)


_STRANGE = (_ANOTHERS_KEY, _OTHER_CONTENT, _A_FAILURE, _NOTHING_SENT) = (
    "an_object_under_another_key",
    "an_object_with_other_content",
    "a_failure",
    "an_object_before_anything_was_sent",
)

# How a delivery is read; what else stands in the contract plays no part in that.
_READING = sample(
    SafetyClass.UNSAFE,
    webhook={
        "scheme": {"kind": "github"},
        "secrets": ["env:EFFECT_BROKER_SECRET_SIMULATED"],
        "committed": "type == 'made'",
        "failed": "type == 'failed'",
        "key_match": {"kind": "field", "path": "key"},
        "agree": {"/amount": "amount"},
        "extraction": {"external_id": "id"},
    },
)


async def _cancels(world: World, actor: Actor, effect_id: UUID) -> None:
    """The caller withdraws the effect."""
    plan = partial(wishes.cancel, receipt_id=actor.process.new_id(), actor="caller:simulation")
    await _changes(world, actor, effect_id, plan)


async def _asks_to_look(world: World, actor: Actor, effect_id: UUID) -> None:
    """A person asks the broker to look now."""
    plan = partial(wishes.reconcile, receipt_id=actor.process.new_id(), actor="operator:simulation")
    await _changes(world, actor, effect_id, plan)


async def _changes(
    world: World, actor: Actor, effect_id: UUID, plan: Callable[[Snapshot], Change[Any]]
) -> Any:
    return await ProcessStore(world, actor).change(world.tenant_id, effect_id, plan)
