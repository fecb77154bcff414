"""A crash of the database while two workers drain a backlog: how long until they are as fast."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter, time

import httpx

from bench.parts import Ground
from bench.stage import Stage, submission

_BACKLOG = 1600
_BEFORE_SECONDS = 10.0
_WINDOW_SECONDS = 2.0
_SHARE = 0.9
_SUBMIT_EVERY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Restarted:
    """What the crash has cost; times count from the moment at which it was ordered.

    Attributes:
        per_second_before: receipts, from the first to the crash.
        per_second_after: receipts, from full speed until the backlog was done.
        down_seconds: until the server took connections again.
        first_seconds: until the first receipt after that.
        recovered_seconds: until the end of the first window with nine tenths of the rate before.
        submit_gap_seconds: the longest time without an accepted submit.
        refused: submits that got no 2xx; each was repeated until it did.
    """

    per_second_before: float
    per_second_after: float
    down_seconds: float
    first_seconds: float
    recovered_seconds: float
    submit_gap_seconds: float
    refused: int


class _Caller:
    """Submits steadily, and again whatever was not accepted."""

    def __init__(self, stage: Stage, tool: str) -> None:
        self._stage, self._tool = stage, tool
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.accepted: list[float] = []
        self.refused = 0

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(_SUBMIT_EVERY_SECONDS):
            body = submission(self._tool, f"steady:{number}")
            try:
                accepted = self._stage.broker.http.post("/v1/effects", json=body).is_success
            except httpx.TransportError:
                accepted = False
            if accepted:
                self.accepted.append(perf_counter())
                number += 1
            else:
                self.refused += 1


def restart(ground: Ground) -> Restarted:
    """Crash the server in the middle of a drain.

    Raises:
        AssertionError: an effect was lost or sent under two keys, or the rate never came back.
    """
    count = ground.count(_BACKLOG, 700)
    with Stage(ground, "bench_restarted") as stage:
        tool = stage.offer("restarted")
        workers = stage.start_workers(2)
        for worker in workers:
            worker.pause()
        stage.submits(tool, "backlog", count)
        caller = _Caller(stage, tool)
        for worker in workers:
            worker.resume()
        caller.start()
        threading.Event().wait(_BEFORE_SECONDS if ground.scale >= 1 else _BEFORE_SECONDS / 2)
        crashed_at = time()
        ground.server.restart("immediate")
        down = time() - crashed_at
        stage.wait_idle()
        caller.end()
        stage.wait_idle()
        submitted = count + len(caller.accepted)
        receipts = stage.receipts_at("backlog")
        total = len(receipts) + len(stage.receipts_at("steady"))
        seen = stage.target.seen("restarted")
        assert total == seen.keys == submitted, (total, submitted, seen)
    gaps = [later - earlier for earlier, later in pairwise(caller.accepted)]
    return _judged(receipts, crashed_at, down, max(gaps), caller.refused)


def _judged(
    receipts: Sequence[float], crashed_at: float, down: float, gap: float, refused: int
) -> Restarted:
    cut = bisect_left(receipts, crashed_at)
    assert 1 < cut < len(receipts), f"{cut} of {len(receipts)} were settled before the crash"
    before = (cut - 1) / (receipts[cut - 1] - receipts[0])
    wanted = _SHARE * before * _WINDOW_SECONDS
    after = receipts[cut:]
    full = next(
        (
            at
            for n, at in enumerate(after)
            if n + 1 - bisect_left(after, at - _WINDOW_SECONDS) >= wanted
        ),
        None,
    )
    assert full is not None, f"the rate of {before:.0f}/s never came back"
    rest = [at for at in after if at > full]
    rate = len(rest) / (rest[-1] - full) if rest else before
    return Restarted(
        per_second_before=before,
        per_second_after=rate,
        down_seconds=down,
        first_seconds=after[0] - crashed_at,
        recovered_seconds=full - crashed_at,
        submit_gap_seconds=gap,
        refused=refused,
    )
