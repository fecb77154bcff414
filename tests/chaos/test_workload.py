"""The workload and the faults are pure functions of seed and length, and hold what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from effect_broker.faultpoints import FaultPoint
from effect_broker.proof.target.faults import parse_plan
from effect_chaos import schedule
from effect_chaos.records import MARKER, Safety, digest_of
from effect_chaos.schedule import (
    API_POINTS,
    HEARTBEAT_TTL_SECONDS,
    WORKER_POINTS,
    FaultKind,
    make_schedule,
)
from effect_chaos.tools import TOOLS
from effect_chaos.workload import TENANTS, Manner, Plan, make_workload

SEEDS = range(1, 30)
SHORT_SECONDS = 20.0

_PRINT_ALL = """
from effect_chaos.schedule import make_schedule
from effect_chaos.workload import make_workload
print(repr(make_workload(11, 25.0)), repr(make_schedule(11, 25.0)))
"""


def printed(hash_seed: str) -> str:
    """Workload and schedule as another process makes them."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PRINT_ALL],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_the_same_seed_gives_the_same_run_in_every_process() -> None:
    here = f"{make_workload(11, 25.0)!r} {make_schedule(11, 25.0)!r}\n"
    assert printed("1") == printed("2") == here


def test_another_seed_or_length_gives_another_run() -> None:
    assert make_workload(1, 20.0).plans != make_workload(2, 20.0).plans
    assert make_schedule(1, 20.0).faults != make_schedule(2, 20.0).faults
    assert len(make_workload(1, 60.0).plans) > len(make_workload(1, 20.0).plans)
    assert len(make_schedule(1, 60.0).faults) > len(make_schedule(1, 20.0).faults)


# The workload ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_short_run_has_every_tool_class_and_tenant(seed: int) -> None:
    plans = make_workload(seed, SHORT_SECONDS).plans
    assert {plan.tool.name for plan in plans} == {tool.name for tool in TOOLS}
    assert {plan.operation.safety for plan in plans} == set(Safety)
    assert {plan.operation.tenant for plan in plans} == set(TENANTS)
    assert len(TENANTS) >= 4


@pytest.mark.parametrize("seed", SEEDS)
def test_operations_are_told_apart_by_name_and_marker(seed: int) -> None:
    plans = make_workload(seed, SHORT_SECONDS).plans
    assert len({plan.operation.name for plan in plans}) == len(plans)
    assert len({plan.operation.marker for plan in plans}) == len(plans)
    for plan in plans:
        assert MARKER.findall(str(plan.arguments)) == [plan.operation.marker]


def test_some_keys_are_used_by_two_tenants() -> None:
    keys = Counter(p.operation.operation_key for p in make_workload(3, 60.0).plans)
    assert any(count > 1 for count in keys.values())


def sent(plan: Plan, manner: Manner) -> str:
    tool, arguments = plan.request(manner)
    return digest_of({"tool": tool, "arguments": arguments})


def test_only_a_drift_is_another_request() -> None:
    for plan in make_workload(4, SHORT_SECONDS).plans:
        honest = plan.operation.request_digest
        assert sent(plan, Manner.SUBMIT) == sent(plan, Manner.REORDERED) == honest
        assert list(plan.request(Manner.REORDERED)[1]) != list(plan.request(Manner.SUBMIT)[1])
        for manner in (Manner.DRIFT, Manner.OTHER_TOOL):
            assert sent(plan, manner) != honest


def test_keys_are_submitted_at_once_later_and_with_another_request() -> None:
    workload = make_workload(5, 60.0)
    manners = Counter(call.manner for call, _ in workload.calls())
    assert set(manners) == set(Manner)
    at_once = [
        plan
        for plan in workload.plans
        if sum(c.manner is Manner.SUBMIT and c.at_seconds == plan.calls[0].at_seconds
               for c in plan.calls) > 1
    ]  # fmt: skip
    assert at_once
    times = [call.at_seconds for call, _ in workload.calls()]
    assert times == sorted(times)
    assert max(times) <= workload.seconds


# The faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_short_run_has_the_gravest_faults(seed: int) -> None:
    kinds = {fault.kind for fault in make_schedule(seed, SHORT_SECONDS).faults}
    assert {
        FaultKind.KILL_WORKER,
        FaultKind.STOP_WORKER,
        FaultKind.KILL_API,
        FaultKind.ARM_KILL,
        FaultKind.CRASH_POSTGRES,
        FaultKind.READ_ONLY,
        FaultKind.DROP_ENGINE,
        FaultKind.TARGET,
    } <= kinds


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_hit_what_there_is_within_the_run(seed: int) -> None:
    made = make_schedule(seed, 60.0)
    assert schedule.WORKERS_LEAST <= made.workers <= schedule.WORKERS_MOST
    times = [fault.at_seconds for fault in made.faults]
    assert times == sorted(times)
    assert 0.0 < times[0] <= times[-1] < 60.0
    for fault in made.faults:
        assert 0 <= fault.slot < made.workers
        assert (fault.kind in (FaultKind.ARM_KILL, FaultKind.ARM_STOP)) == bool(fault.point)
        if fault.kind in (FaultKind.STOP_WORKER, FaultKind.ARM_STOP):
            assert fault.lasts_seconds > HEARTBEAT_TTL_SECONDS


def test_every_kind_of_fault_comes_in_a_long_run() -> None:
    assert {fault.kind for fault in make_schedule(1, 120.0).faults} == set(FaultKind)


def test_every_fault_point_but_the_one_behind_the_last_gate_may_be_armed() -> None:
    # Stopped behind its last gate a process may make a second effect: the matrix has that.
    may_be = set(FaultPoint) - {FaultPoint.AFTER_LAST_GATE}
    assert sorted(WORKER_POINTS + API_POINTS) == sorted(may_be)
    armed = {f.point for seed in SEEDS for f in make_schedule(seed, 120.0).faults if f.point}
    assert armed == may_be


def test_the_target_understands_every_plan() -> None:
    for seed in SEEDS:
        for fault in make_schedule(seed, 60.0).faults:
            for plan in fault.plans:
                parse_plan(plan)


def test_words_name_what_is_hit() -> None:
    words = [fault.words for fault in make_schedule(7, 60.0).faults]
    assert any(w.startswith("kill_worker #") for w in words)
    assert any(w.startswith("arm_kill ") for w in words)
    assert any(w.startswith("target charge [") for w in words)
