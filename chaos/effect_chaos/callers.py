"""The callers of a run: they carry out the workload's calls in time, and insist as callers do.

A submit without an answer, or with "cannot know" (5xx), is sent again, to the other API as well,
until it is answered; a caller that went away after one try never learns. Every call is written
down by the recorder. What no caller may ever be answered is kept in `surprises`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Final, assert_never

import httpx

from effect_chaos.recorder import RecordedCaller, Recorder
from effect_chaos.run_clock import RunClock
from effect_chaos.workload import Call, Manner, Plan, Workload

THREADS: Final = 24
"""Callers at the same time: a stopped API holds those who speak to it."""
_AGAIN_SECONDS: Final = 0.25

# The broker cannot know, or is away: try again. 500 is none of them: it is a mistake.
_UNAVAILABLE: Final = frozenset({502, 503, 504})


class NobodyKnows(Exception):
    """No API process gave an answer in all the time that there was."""


class Callers:
    """All callers of a run, at several API processes.

    Args:
        api_keys: by tenant.
        addresses: the base URL of each API process.
    """

    def __init__(
        self,
        recorder: Recorder,
        api_keys: Mapping[str, str],
        addresses: Sequence[str],
    ) -> None:
        self.surprises: list[str] = []
        self._apis = len(addresses)
        self._callers = {
            (tenant, api): RecordedCaller(recorder, tenant, key, partial(str, address))
            for tenant, key in api_keys.items()
            for api, address in enumerate(addresses)
        }
        self._lock = threading.Lock()
        self._effects: dict[str, str] = {}
        self._acknowledged: dict[str, threading.Event] = {}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="caller")
        self._begun: list[Future[None]] = []
        self._gone = threading.Event()

    def effect_id(self, plan: Plan) -> str | None:
        """The effect id that an operation was given, None while none was."""
        with self._lock:
            return self._effects.get(plan.operation.name)

    def run(self, workload: Workload, clock: RunClock) -> None:
        """Make every call at its time; returns when the last one has begun."""
        for plan in workload.plans:
            self._acknowledged[plan.operation.name] = threading.Event()
        for call, plan in workload.calls():
            if not clock.wait_until(call.at_seconds):
                return
            self._begun.append(self._pool.submit(self._watched, call, plan))

    def hang_up(self) -> None:
        """Let callers who insist go, and wait until the last has gone."""
        self._gone.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for caller in self._callers.values():
            caller.close()

    def wait_idle(self, timeout_seconds: float) -> bool:
        """Wait until every call that was begun has come to its end; False when time was over."""
        return not wait(self._begun, timeout_seconds).not_done

    # -- one call --------------------------------------------------------------------------------

    def submit(
        self,
        plan: Plan,
        manner: Manner = Manner.SUBMIT,
        api: int = 0,
        ends_at: float = math.inf,
    ) -> int | None:
        """Submit until it is answered; the status, None where the caller had to go first.

        `ends_at` is on CLOCK_MONOTONIC.
        """
        tool, arguments = plan.request(manner)
        key = plan.operation.operation_key
        while not self._gone.is_set() and time.monotonic() < ends_at:
            caller = self._caller(plan, api)
            response = caller.submit(key, tool, arguments)
            if manner is Manner.ONCE:
                return None
            if response is not None and response.status_code not in _UNAVAILABLE:
                self._noted(plan, response)
                return response.status_code
            self._gone.wait(_AGAIN_SECONDS)
            api += 1
        return None

    def look(self, plan: Plan, effect_id: str, api: int = 0) -> dict[str, Any] | None:
        """Read an effect once; None unless it was shown."""
        return self._body(self._caller(plan, api).effect(plan.operation.operation_key, effect_id))

    def receipt(self, plan: Plan, effect_id: str, api: int = 0) -> None:
        """Read a receipt once."""
        self._body(self._caller(plan, api).receipt(plan.operation.operation_key, effect_id))

    def find(self, plan: Plan, ends_at: float = math.inf) -> str | None:
        """Look for an operation that was never acknowledged; its effect id if it stands.

        Raises:
            NobodyKnows: no API could say until `ends_at` (CLOCK_MONOTONIC).
        """
        key = plan.operation.operation_key
        api = 0
        while not self._gone.is_set() and time.monotonic() < ends_at:
            response = self._caller(plan, api).listing(key)
            if response is not None and response.status_code == 200:
                found = response.json()["effects"]
                return next((str(e["effect_id"]) for e in found if e["operation_key"] == key), None)
            self._gone.wait(_AGAIN_SECONDS)
            api += 1
        raise NobodyKnows(f"{plan.operation.name}: no listing was answered")

    def _watched(self, call: Call, plan: Plan) -> None:
        try:
            self._carry_out(call, plan)
        except Exception as problem:  # a mistake of ours must not pass for silence of the broker
            self._surprise(f"{plan.operation.name}: {call.manner}: {problem!r}")

    def _carry_out(self, call: Call, plan: Plan) -> None:
        match call.manner:
            case Manner.SUBMIT | Manner.ONCE | Manner.REORDERED:
                self.submit(plan, call.manner, call.api)
            case Manner.DRIFT | Manner.OTHER_TOOL:
                if self._wait_acknowledged(plan):
                    self.submit(plan, call.manner, call.api)
            case Manner.READ:
                if (effect_id := self.effect_id(plan)) is not None:
                    self.look(plan, effect_id, call.api)
            case Manner.RECEIPT:
                if (effect_id := self.effect_id(plan)) is not None:
                    self.receipt(plan, effect_id, call.api)
            case Manner.LIST:
                self._caller(plan, call.api).listing(plan.tool.name)
            case never:
                assert_never(never)

    def _wait_acknowledged(self, plan: Plan) -> bool:
        acknowledged = self._acknowledged[plan.operation.name]
        while not self._gone.is_set():
            if acknowledged.wait(_AGAIN_SECONDS):
                return True
        return False

    def _caller(self, plan: Plan, api: int) -> RecordedCaller:
        return self._callers[plan.operation.tenant, api % self._apis]

    def _noted(self, plan: Plan, response: httpx.Response) -> None:
        name = plan.operation.name
        if response.status_code in (200, 202):
            with self._lock:
                self._effects[name] = str(response.json()["effect_id"])
            if name in self._acknowledged:
                self._acknowledged[name].set()
        elif response.status_code != 409:
            self._surprise(f"{name}: a submit was answered {response.status_code}")

    def _body(self, response: httpx.Response | None) -> dict[str, Any] | None:
        if response is None or response.status_code in _UNAVAILABLE | {404}:
            return None
        if response.status_code != 200:
            self._surprise(f"{response.request.url.path} was answered {response.status_code}")
            return None
        body: dict[str, Any] = response.json()
        return body

    def _surprise(self, text: str) -> None:
        with self._lock:
            self.surprises.append(text)
