"""Owns the requests of `count_only` kinds: counted in memory and written now and then.

For benchmarks alone, where a durable row for each request would measure the target's disk. A
SIGKILL loses at most the counts of the last `FLUSH_SECONDS`; no other kind comes here.
"""

from __future__ import annotations

from effect_broker.proof.target.ledger import Ledger
from effect_broker.proof.target.messages import Answer, Keys, json_answer
from effect_broker.proof.target.modes import id_prefix

FLUSH_SECONDS = 0.5
"""Rare enough to cost nothing, often enough that a benchmark's end is soon on disk."""


class CountOnly:
    """Counters by kind. Keys are kept in memory only, for the number of distinct ones."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._requests = ledger.counted()
        self._keys: dict[str, set[str]] = {}
        self._written = dict(self._requests)

    def count(self, kind: str, keys: Keys) -> Answer:
        """Count one request as one effect and answer it."""
        number = self._requests.get(kind, 0) + 1
        self._requests[kind] = number
        if keys.any is not None:
            self._keys.setdefault(kind, set()).add(keys.any)
        return json_answer(201, {"id": f"{id_prefix(kind)}_{number:06d}", "status": "succeeded"})

    def requests(self, kind: str | None) -> int:
        if kind is None:
            return sum(self._requests.values())
        return self._requests.get(kind, 0)

    def distinct_keys(self, kind: str | None) -> int:
        kinds = self._keys if kind is None else [kind]
        return sum(len(self._keys.get(each, ())) for each in kinds)

    def flush(self) -> None:
        if self._requests != self._written:
            self._ledger.write_counted(self._requests)
            self._written = dict(self._requests)

    def clear(self) -> None:
        self._requests.clear()
        self._keys.clear()
        self._written.clear()
