"""Places, rate and turns: what is granted now, and when whoever does not fit comes again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from heapq import heappop, heappush

import pytest

from contracts.decide_cases import IDEMPOTENT, at, attempt
from effect_contracts.decide import Action, Reason, decide
from effect_contracts.facts import Facts, Hold, Outcome
from effect_contracts.life import LifeEvent
from effect_contracts.pacing import Limits, Pace, burst_of, place

NOW = at(1000)
TICK = timedelta(microseconds=1)
ONE_PLACE = Limits(concurrency_max=1)
RATE = Limits(per_second_max=10.0, burst_max=3)


def seconds(turn_at: datetime | None) -> float:
    assert turn_at is not None
    return (turn_at - NOW).total_seconds()


# Places -------------------------------------------------------------------------------------


def test_a_place_is_given_while_fewer_are_open_than_permitted() -> None:
    two = Limits(concurrency_max=2)
    assert place(two, Pace(open_attempts=1), NOW, waited=False).turn_at is None
    assert place(two, Pace(open_attempts=2), NOW, waited=False).turn_at is not None
    assert place(two, Pace(open_attempts=2), NOW, waited=True).turn_at is not None
    # A version with a higher limit has begun more than this one permits.
    assert place(two, Pace(open_attempts=3), NOW, waited=False).turn_at is not None


def test_who_comes_in_vain_comes_again_sooner_than_the_next_turn() -> None:
    pace = Pace(open_attempts=1, hold_seconds=0.1, turns_at=NOW + timedelta(seconds=50))
    first = place(ONE_PLACE, pace, NOW, waited=True)
    second = place(ONE_PLACE, first.after, NOW, waited=True)
    assert (seconds(first.turn_at), seconds(second.turn_at)) == pytest.approx((0.05, 0.1))
    assert second.after.turns_at == pace.turns_at
    # Where the rate is what lacks, there is nothing to come for any sooner.
    spent = Pace(rate_at=NOW + timedelta(seconds=0.21))
    assert seconds(place(RATE, spent, NOW, waited=True).turn_at) == pytest.approx(0.1)


def test_turns_follow_each_other_as_attempts_have_taken_so_far() -> None:
    pace = Pace(open_attempts=4, hold_seconds=0.4)
    first = place(Limits(concurrency_max=4), pace, NOW, waited=False)
    second = place(Limits(concurrency_max=4), first.after, NOW, waited=False)
    assert (seconds(first.turn_at), seconds(second.turn_at)) == pytest.approx((0.1, 0.2))


def test_a_target_that_hangs_does_not_put_turns_off_without_end() -> None:
    pace = Pace(open_attempts=1, open_seconds=3600.0, hold_seconds=0.01)
    assert seconds(place(ONE_PLACE, pace, NOW, waited=False).turn_at) == 0.25
    quick = Pace(open_attempts=1, hold_seconds=0.0)
    assert seconds(place(ONE_PLACE, quick, NOW, waited=False).turn_at) == pytest.approx(0.001)


def test_how_long_an_attempt_takes_follows_what_was_seen() -> None:
    first = place(ONE_PLACE, Pace(ended_seconds=2.0), NOW, waited=False).after
    assert (first.hold_seconds, first.ended_seconds) == (2.0, None)
    later = place(ONE_PLACE, replace(first, ended_seconds=1.0), NOW, waited=True).after
    assert later.hold_seconds == pytest.approx(1.8)


# The rate ------------------------------------------------------------------------------------


def test_a_burst_is_granted_at_once_and_then_one_after_the_other() -> None:
    pace = Pace()
    for _ in range(3):
        found = place(RATE, pace, NOW, waited=False)
        assert found.turn_at is None
        pace = found.after
    assert seconds(place(RATE, pace, NOW, waited=False).turn_at) == pytest.approx(0.1)
    almost = NOW + timedelta(seconds=0.1) - TICK
    assert place(RATE, pace, almost, waited=True).turn_at is not None
    assert place(RATE, pace, almost + TICK, waited=True).turn_at is None


def test_turns_permit_nothing_that_all_come_to_late() -> None:
    """As after an outage of all workers: their turns are long past, and the rate still holds."""
    pace, granted = Pace(), 0
    for _ in range(50):
        found = place(RATE, pace, NOW, waited=True)
        pace, granted = found.after, granted + (found.turn_at is None)
    assert granted == RATE.burst_max


def test_a_burst_that_nobody_has_named_is_a_tenth_of_a_second_and_one_at_least() -> None:
    assert [burst_of(rate) for rate in (0.5, 9.0, 11.0, 25.0, 40.0, 41.0)] == [1, 1, 2, 3, 4, 5]
    assert Limits() == Limits(None, None, 1)
    assert Pace().open_seconds == 0.0


# Who goes first -------------------------------------------------------------------------------


def test_who_has_not_waited_does_not_overtake_those_of_its_tenant_who_have_turns() -> None:
    queued = Pace(granted_at=NOW, turns_at=NOW + timedelta(seconds=5))
    assert seconds(place(ONE_PLACE, queued, NOW, waited=False).turn_at) == pytest.approx(5.1)
    assert place(ONE_PLACE, queued, NOW, waited=True).turn_at is None


def test_turns_of_those_who_never_come_hold_nobody_up_for_long() -> None:
    queued = Pace(granted_at=NOW - timedelta(seconds=3), turns_at=NOW + timedelta(seconds=500))
    assert place(ONE_PLACE, queued, NOW, waited=False).turn_at is None
    under_way = replace(queued, open_attempts=1)
    assert seconds(place(ONE_PLACE, under_way, NOW, waited=False).turn_at) > 500


@pytest.mark.parametrize(
    ("limits", "idle_seconds"),
    [(ONE_PLACE, 2.0), (Limits(per_second_max=0.5), 8.0), (Limits(per_second_max=3.0), 2.0)],
)
def test_after_how_long_turns_count_as_lost(limits: Limits, idle_seconds: float) -> None:
    since = NOW - timedelta(seconds=idle_seconds)
    queued = Pace(granted_at=since, turns_at=NOW + timedelta(seconds=500))
    assert place(limits, queued, NOW, waited=False).turn_at is not None
    assert (
        place(limits, replace(queued, granted_at=since - TICK), NOW, waited=False).turn_at is None
    )
    # A turn that comes just now is nobody's any more.
    for gone_at in (NOW, NOW - TICK):
        assert place(limits, replace(queued, turns_at=gone_at), NOW, waited=False).turn_at is None


def test_each_of_several_tenants_gets_its_share_of_the_turns() -> None:
    pace = Pace(open_attempts=1, hold_seconds=0.1)
    alone = place(ONE_PLACE, pace, NOW, waited=False)
    turns = [alone, *(place(ONE_PLACE, replace(pace, others=n), NOW, waited=False) for n in (1, 2))]
    assert [seconds(one.turn_at) for one in turns] == pytest.approx([0.1, 0.2, 0.3])


# Rows that are shorter than their last turn -----------------------------------------------------


FAR = NOW + timedelta(seconds=5000)


def test_a_row_is_no_longer_than_those_who_stand_in_it() -> None:
    """The others were withdrawn or have expired, and left turns that nobody takes."""
    row = Pace(open_attempts=1, hold_seconds=0.1, granted_at=NOW, turns_at=FAR)
    unknown = place(ONE_PLACE, row, NOW, waited=False)
    assert unknown.turn_at == FAR + timedelta(seconds=0.1)
    three = place(ONE_PLACE, replace(row, waiting=3), NOW, waited=False)
    assert seconds(three.turn_at) == pytest.approx(0.4)
    assert three.after.turns_at == three.turn_at
    many = place(ONE_PLACE, replace(row, waiting=999_999), NOW, waited=False)
    assert many.turn_at == unknown.turn_at  # nor is it longer than its last turn
    shared = place(ONE_PLACE, replace(row, waiting=3, others=1), NOW, waited=False)
    assert seconds(shared.turn_at) == pytest.approx(0.8)
    nobody = replace(row, open_attempts=0, waiting=0)
    assert place(ONE_PLACE, nobody, NOW, waited=False).turn_at is None
    assert place(ONE_PLACE, replace(nobody, waiting=1), NOW, waited=False).turn_at is not None


def test_who_comes_in_vain_comes_soon_again_where_few_do() -> None:
    row = Pace(open_attempts=1, hold_seconds=0.1, granted_at=NOW, again_at=FAR, waiting=2)
    found = place(ONE_PLACE, row, NOW, waited=True)
    assert seconds(found.turn_at) == pytest.approx(2 * 0.05 + 0.05)
    assert found.after.waiting is None  # it is counted anew at each look


def test_whoever_comes_first_after_a_silence_begins_the_row_anew() -> None:
    """Those who have turns do not come: they are held, or their workers are away."""
    silent = Pace(granted_at=NOW - timedelta(seconds=3), turns_at=FAR, waiting=None)
    first = place(ONE_PLACE, silent, NOW, waited=False)
    assert (first.turn_at, first.after.turns_at) == (None, None)
    second = place(ONE_PLACE, replace(first.after, open_attempts=1), NOW, waited=False)
    assert seconds(second.turn_at) == pytest.approx(0.1)
    # One of the row does come: it stands.
    assert place(ONE_PLACE, silent, NOW, waited=True).after.turns_at == FAR


def test_a_grant_wakes_others_while_it_leaves_room() -> None:
    wakes = [place(Limits(20), Pace(open_attempts=n), NOW, waited=True).wakes for n in (0, 17, 18)]
    assert wakes == [2, 2, 1]
    full = place(Limits(20), Pace(open_attempts=19), NOW, waited=True)
    assert (full.turn_at, full.wakes) == (None, 0)
    assert place(Limits(20), Pace(waiting=0), NOW, waited=True).wakes == 0  # nobody is there
    assert place(Limits(20), Pace(waiting=1), NOW, waited=True).wakes == 2
    assert place(Limits(20), Pace(open_attempts=20), NOW, waited=True).wakes == 0
    pace, wakes = Pace(), []
    for _ in range(RATE.burst_max):
        found = place(RATE, pace, NOW, waited=True)
        pace = found.after
        wakes.append(found.wakes)
    assert wakes == [2, 2, 0]


# Versions, and the clock --------------------------------------------------------------------------


SLOW, FAST = Limits(per_second_max=0.5), Limits(per_second_max=50.0, burst_max=5)


def test_a_grant_of_a_slow_version_takes_one_interval_of_a_fast_one() -> None:
    """Somebody has raised the limit, while a backlog waits under the one before."""
    slow = place(SLOW, Pace(), NOW, waited=False).after
    found = place(FAST, slow, NOW + timedelta(seconds=0.02), waited=False)
    assert found.turn_at is None
    for limits, seconds_later in ((FAST, 0.02), (SLOW, 2.0)):
        later = timedelta(seconds=seconds_later)
        assert place(limits, slow, NOW + later - TICK, waited=True).turn_at is not None
        assert place(limits, slow, NOW + later, waited=True).turn_at is None
    # The slow one does not get faster by that.
    assert place(SLOW, found.after, NOW + timedelta(seconds=1.9), waited=True).turn_at is not None


def test_a_backlog_under_a_low_limit_leaves_the_higher_one_its_rate() -> None:
    pace, starts = Pace(), {SLOW: 0, FAST: 0}
    for tick in range(20_000):  # the slow one always has somebody to send, for 20 s
        for limits in (SLOW, FAST) if tick % 40 == 0 else (SLOW,):
            found = place(limits, pace, NOW + timedelta(milliseconds=tick), waited=True)
            pace = replace(pace, rate_at=found.after.rate_at, granted_at=found.after.granted_at)
            starts[limits] += found.turn_at is None
    assert 8 <= starts[SLOW] <= 10
    assert starts[FAST] >= 490  # of 500: one that meets a grant of the other waits for a moment


def test_a_clock_that_goes_back_does_not_stop_the_target_until_it_is_there_again() -> None:
    pace = Pace()
    for _ in range(RATE.burst_max):
        pace = place(RATE, pace, NOW, waited=False).after
    back, granted = NOW - timedelta(hours=1), 0
    for _ in range(20):
        found = place(RATE, pace, back, waited=True)
        pace, granted = found.after, granted + (found.turn_at is None)
        assert found.turn_at is None or found.turn_at < NOW - timedelta(minutes=59)
    assert granted == RATE.burst_max  # and the rate holds from there on
    unrated = place(Limits(concurrency_max=9), replace(pace, granted_at=NOW), back, waited=True)
    assert unrated.after.rate_at is None


# A backlog --------------------------------------------------------------------------------------


@dataclass
class Backlog:
    """Effects that all want the same target, which takes a while for each; times are seconds."""

    limits: Limits
    hold_seconds: float
    pace: Pace = field(default_factory=Pace)
    open: list[tuple[float, float]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    most_open: int = 0
    tries: int = 0

    def run(self, count: int, late: Iterator[float]) -> None:
        coming = [(n * 0.002, n, False) for n in range(count)]
        while coming:
            when, n, waited = heappop(coming)
            self.tries += 1
            turn_at = self._try(when, waited)
            if turn_at is not None:
                heappush(coming, (turn_at + next(late), n, True))

    def _try(self, when: float, waited: bool) -> float | None:
        ended = []
        while self.open and self.open[0][0] <= when:
            end, start = heappop(self.open)
            ended.append(end - start)
        known = replace(
            self.pace,
            open_attempts=len(self.open),
            ended_seconds=sum(ended) / len(ended) if ended else None,
        )
        found = place(self.limits, known, NOW + timedelta(seconds=when), waited=waited)
        self.pace = found.after
        if found.turn_at is not None:
            return seconds(found.turn_at)
        self.starts.append(when)
        heappush(self.open, (when + self.hold_seconds, when))
        self.most_open = max(self.most_open, len(self.open))
        return None


@pytest.mark.parametrize(
    ("limits", "hold_seconds", "ideal_seconds"),
    [
        (Limits(3, 40.0, 4), 0.05, 25.0),
        (Limits(None, 40.0, 4), 0.05, 25.0),
        (Limits(20, None, 1), 0.25, 12.5),
    ],
)
@pytest.mark.parametrize("lateness_seconds", [0.01, 0.7])
def test_a_backlog_drains_at_the_limits_and_each_waiter_comes_a_few_times(
    limits: Limits, hold_seconds: float, ideal_seconds: float, lateness_seconds: float
) -> None:
    count, chance = 1000, random.Random(7)
    backlog = Backlog(limits, hold_seconds)
    backlog.run(count, iter(lambda: chance.uniform(0, lateness_seconds), None))
    starts = backlog.starts
    assert len(starts) == count
    assert limits.concurrency_max is None or backlog.most_open <= limits.concurrency_max
    if limits.per_second_max is not None:
        for first in range(count):
            for span in (1, 5, 40, 200):
                if first + span < count:
                    most = limits.per_second_max * (starts[first + span] - starts[first])
                    assert span + 1 <= most + limits.burst_max + 1e-3
    assert starts[-1] <= 2 * ideal_seconds
    assert backlog.tries <= 8 * count


# decide ----------------------------------------------------------------------------------------

LIMITED = replace(IDEMPOTENT, limits=ONE_PLACE)
FULL = Pace(open_attempts=1)


@pytest.mark.parametrize(
    ("attempts", "event", "row"),
    [
        ((), LifeEvent.NOTHING_SENT, 7),
        ((attempt(1, Outcome.RETRYABLE),), LifeEvent.NO_COMMIT_PROVED, 9),
        ((attempt(1, Outcome.AMBIGUOUS),), LifeEvent.OUTCOME_LOST, 11),
    ],
)
def test_what_would_be_sent_waits_for_its_turn_in_the_state_that_it_is_in(
    attempts: tuple[object, ...], event: LifeEvent, row: int
) -> None:
    facts = Facts(attempts=attempts, pace=FULL)  # type: ignore[arg-type]
    found = decide(facts, LIMITED, NOW)
    assert (found.action, found.event, found.reason, found.row) == (
        Action.WAIT, event, Reason.TARGET_BUSY, row,
    )  # fmt: skip
    assert seconds(found.at) == pytest.approx(0.1)
    assert found.ordinal is None
    assert decide(replace(facts, pace=Pace()), LIMITED, NOW).action is Action.DISPATCH
    assert decide(facts, IDEMPOTENT, NOW).action is Action.DISPATCH  # it limits nothing


def test_a_turn_that_was_given_is_waited_for_whoever_asks() -> None:
    facts = Facts(turn_at=NOW + TICK)
    for known in (facts, replace(facts, pace=Pace())):
        found = decide(known, LIMITED, NOW)
        assert (found.reason, found.at) == (Reason.TARGET_BUSY, NOW + TICK)
    assert decide(facts, LIMITED, NOW + TICK).action is Action.DISPATCH
    late = replace(facts, turn_at=NOW - TICK, pace=FULL)
    found = decide(late, LIMITED, NOW)
    assert found.reason is Reason.TARGET_BUSY
    assert seconds(found.at) > 0


def test_who_waits_for_a_turn_expires_when_it_has_to() -> None:
    facts = Facts(turn_at=NOW + timedelta(seconds=9), send_before=NOW + timedelta(seconds=1))
    assert decide(facts, LIMITED, NOW).at == facts.send_before
    # Of what has been sent once, the caller was told nothing of the kind.
    again = replace(facts, attempts=(attempt(1, Outcome.RETRYABLE),))
    assert decide(again, LIMITED, NOW).at == facts.turn_at
    late = decide(facts, LIMITED, NOW + timedelta(seconds=1))
    assert (late.action, late.reason) == (Action.SETTLE, Reason.EXPIRED)


def test_a_turn_beyond_the_end_of_the_key_is_not_waited_for() -> None:
    """Then it is looked up, or a person is asked, and not when the turn comes after all."""
    policy = replace(LIMITED, key_retention_seconds=3600.0, attempts_max=9)
    lost = replace(Facts(), attempts=(attempt(1, Outcome.AMBIGUOUS),), turn_at=at(99_999))
    found = decide(lost, policy, NOW)
    assert (found.reason, found.action) == (Reason.TARGET_BUSY, Action.WAIT)
    assert found.at is not None
    assert found.at < at(3700)
    before = decide(lost, policy, found.at - 2 * TICK)
    assert (before.reason, before.at) == (Reason.TARGET_BUSY, found.at)
    then = decide(lost, policy, found.at)
    assert then.reason is Reason.KEY_EXPIRED
    # Turned down for good by the target's own word, it has no key to lose.
    cleared = replace(lost, attempts=(attempt(1, Outcome.RETRYABLE),))
    assert decide(cleared, policy, NOW).at == at(99_999)


def test_only_sending_waits_for_a_turn() -> None:
    full = Facts(pace=FULL)
    held = decide(replace(full, holds=frozenset({Hold.PAUSED})), LIMITED, NOW)
    assert (held.action, held.reason) == (Action.PARK, Reason.PAUSED)
    done = decide(replace(full, attempts=(attempt(1, Outcome.COMMITTED),)), LIMITED, NOW)
    assert done.action is Action.SETTLE
    lost = (attempt(1, Outcome.AMBIGUOUS),)
    probing = replace(LIMITED, attempts_max=1, probes=True)
    assert decide(replace(full, attempts=lost), probing, NOW).action is Action.PROBE
