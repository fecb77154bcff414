"""The pace of limited targets in memory, kept as `effect_broker.store.paces` does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from effect_broker.protocol.ports import WAKE_SECONDS, Intent, KeepPace, Snapshot
from effect_contracts.decision import Reason
from effect_contracts.facts import Attempt
from effect_contracts.pacing import Pace

# A contract's name and a target.
Target = tuple[str, str]


@dataclass
class _Kept:
    """What is kept of one target."""

    pace: Pace = field(default_factory=Pace)
    open_until: dict[UUID, datetime] = field(default_factory=dict)
    turns: dict[UUID, tuple[datetime | None, datetime | None]] = field(default_factory=dict)


class MemoryPaces:
    """The paces of all targets."""

    def __init__(self) -> None:
        self._kept: dict[Target, _Kept] = {}

    def shown(
        self,
        snapshot: Snapshot,
        identity: str,
        attempts: Mapping[UUID, Attempt],
        intents: Iterable[Intent],
    ) -> Snapshot:
        """Return the snapshot with the pace of the contract's target.

        Args:
            attempts: of all effects, by id.
            intents: all there are.
        """
        intent = snapshot.intent
        target = (intent.contract_name, identity)
        waiting = Counter(
            one.tenant_id for one in intents if _waits(one, intent.contract_name, snapshot.now)
        )
        pace = self.of(target, intent.tenant_id, attempts, snapshot.now, waiting)
        return replace(snapshot, facts=replace(snapshot.facts, pace=pace))

    def of(
        self,
        target: Target,
        tenant_id: UUID,
        attempts: Mapping[UUID, Attempt],
        now: datetime,
        waiting: Counter[UUID],
    ) -> Pace:
        """Return the pace of a target, with the turns of one tenant.

        Args:
            waiting: how many effects of each tenant have a turn to come.
        """
        kept = self._kept.setdefault(target, _Kept())
        ended = []
        for attempt_id, until in list(kept.open_until.items()):
            attempt = attempts[attempt_id]
            if attempt.outcome is None and until > now:
                continue
            del kept.open_until[attempt_id]
            seconds = ((attempt.recorded_at or until) - attempt.started_at).total_seconds()
            ended.append(max(seconds, 0.0))
        kept.turns = {
            tenant: turns
            for tenant, turns in kept.turns.items()
            if waiting[tenant] and any(at is not None and at > now for at in turns)
        }
        turns_at, again_at = kept.turns.get(tenant_id, (None, None))
        ages = [(now - attempts[one].started_at).total_seconds() for one in kept.open_until]
        return replace(
            kept.pace,
            open_attempts=len(ages),
            open_seconds=_mean(ages) or 0.0,
            ended_seconds=_mean(ended),
            turns_at=turns_at,
            again_at=again_at,
            others=len(kept.turns.keys() - {tenant_id}),
            waiting=waiting[tenant_id],
        )

    def fingerprint(self) -> tuple[object, ...]:
        """Return what an effect may meet at its target, without the names of attempts."""
        return tuple(
            (target, kept.pace, tuple(sorted(kept.open_until.values())), tuple(kept.turns.items()))
            for target, kept in self._kept.items()
        )

    def keep(self, write: KeepPace, intent: Intent) -> None:
        """Keep what a grant, or a turn, has left."""
        kept = self._kept[intent.contract_name, write.target_identity]
        kept.pace = write.pace
        if write.attempt_id is not None:
            assert write.open_until is not None, "an attempt is open until a moment"
            kept.open_until[write.attempt_id] = write.open_until
        if write.attempt_id is None or intent.tenant_id in kept.turns:
            kept.turns[intent.tenant_id] = (write.pace.turns_at, write.pace.again_at)

    def woken(
        self, write: KeepPace, granted: Intent, intents: Iterable[Intent], now: datetime
    ) -> list[Intent]:
        """Return those whom a grant wakes, as they are then."""
        later = now + timedelta(seconds=WAKE_SECONDS)
        far = [
            (one.next_action_at, n, one)
            for n, one in enumerate(intents)
            if one.tenant_id == granted.tenant_id and _waits(one, granted.contract_name, later)
        ]
        return [replace(one, next_action_at=now) for _, _, one in sorted(far)[: write.wakes]]


def _waits(intent: Intent, contract_name: str, now: datetime) -> bool:
    """Whether an effect of the contract has a turn that is later than `now`."""
    at = intent.next_action_at
    here = intent.contract_name == contract_name and intent.reason == Reason.TARGET_BUSY
    return here and at is not None and at > now


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
