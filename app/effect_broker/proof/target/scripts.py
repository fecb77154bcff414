"""Owns the queued scripts: which plan the next request gets.

The promises: each matching request consumes exactly one plan, of the oldest script that matches
and has one left; a request that no script matches is served honestly. Scripts live in memory and
end with the process, since a fault that survives a restart would surprise the next test.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from effect_broker.proof.target.faults import HONEST, Plan
from effect_broker.proof.target.messages import Keys


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests a script is for; `None` is any.

    A `method` of `None` is every *mutating* request: verbs are about effects, and a look-up in
    between must not use one up. ``GET`` is for look-ups, ``*`` for both.
    """

    kind: str | None = None
    method: str | None = None
    key: str | None = None

    def admits(self, kind: str, method: str, keys: Keys) -> bool:
        if self.kind not in (None, kind):
            return False
        if self.key is not None and self.key not in (keys.downstream, keys.correlation):
            return False
        if self.method is None:
            return method not in ("GET", "HEAD", "OPTIONS")
        return self.method in ("*", method)


@dataclass(slots=True)
class Script:
    match: Match
    plans: deque[Plan]
    repeat_last: bool


class Scripts:
    """The queue of scripts, oldest first."""

    def __init__(self) -> None:
        self._scripts: list[Script] = []

    def add(self, match: Match, plans: list[Plan], *, repeat_last: bool) -> None:
        """Queue `plans` for the next matching requests; with `repeat_last` the last one stays."""
        assert plans, "a script has at least one plan"
        self._scripts.append(Script(match, deque(plans), repeat_last))

    def connection_is_next(self) -> bool:
        return any(script.plans[0].where == "accept" for script in self._scripts)

    def next_for_connection(self) -> Plan | None:
        """The plan for a connection of which nothing was read yet, if one is next."""
        for script in self._scripts:
            if script.plans[0].where == "accept":
                return self._take(script)
        return None

    def next_for_head(self, kind: str, method: str, keys: Keys) -> Plan | None:
        """The plan for a request whose head was read, if the next one is of that sort."""
        return self._next(kind, method, keys, heads_only=True)

    def next_for_request(self, kind: str, method: str, keys: Keys) -> Plan:
        return self._next(kind, method, keys, heads_only=False) or HONEST

    def _next(self, kind: str, method: str, keys: Keys, *, heads_only: bool) -> Plan | None:
        for script in self._scripts:
            plan = script.plans[0]
            if plan.where == "accept" or not script.match.admits(kind, method, keys):
                continue
            return None if heads_only and plan.where != "head" else self._take(script)
        return None

    def _take(self, script: Script) -> Plan:
        if len(script.plans) == 1 and script.repeat_last:
            return script.plans[0]
        plan = script.plans.popleft()
        if not script.plans:
            self._scripts.remove(script)
        return plan

    def left(self) -> list[str]:
        """The plans that no request has taken, in order."""
        return [plan.text for script in self._scripts for plan in script.plans]

    def clear(self) -> None:
        self._scripts.clear()
