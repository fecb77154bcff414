"""Where scenarios run: one real broker that many of them share, with or without a bug in it.

A stage holds one API and one worker, sound or broken, and changes them between plays. Each play
has a kind of objects, a contract and operation keys of its own, so that what an earlier one has
left disturbs no later one; its evidence holds what is its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psycopg

from effect_broker.faultpoints import FaultAction, FaultPoint
from effect_broker.proof.broker import SETTLE_SECONDS, ProofBroker, wait_until
from effect_broker.proof.contracts import tuned
from effect_broker.proof.stack import PROGRAM, ManagedProcess
from effect_broker.proof.target.modes import ModeName
from effect_broker.store import demo_ledger
from effect_chaos import records
from effect_chaos.planted.bugs import Bug
from effect_chaos.planted.patching import CHOSEN, ENV_BUG_FILE, choose
from effect_chaos.recorder import RecordedCaller, Recorder
from effect_chaos.records import Operation, Safety
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument

TENANT = "first"
OTHER_TENANT = "second"
_POLL_SECONDS = 2.0
_READY_SECONDS = 90.0  # two dozen busy processes on two cores have made a start take thirty
# A busy machine may need a second or two to connect, and an attempt that never was sent brings
# no bug to light. What a killed worker leaves open is waited for as long.
_ATTEMPT_SECONDS = 4.0
_TABLE_TOOL = "proof.entry"
_BROKEN = ("effect_chaos.planted", CHOSEN)

# Effects that will be acted upon soon, and runs that the engine still has to end or to recover: a
# run of an earlier play that comes back under another bug would meet that play's fault points.
_BUSY = (
    "SELECT (SELECT count(*) FROM effect_broker.effect_intents WHERE NOT parked"
    " AND state NOT IN ('succeeded', 'failed_final', 'cancelled', 'compensated')"
    " AND next_action_at < clock_timestamp() + interval '1 hour')"
    " + (SELECT count(*) FROM dbos.workflow_status WHERE status IN ('PENDING', 'ENQUEUED'))"
)


_INTENTS = "effect_broker.effect_intents"
_INTENT_RULES = "sound_intent"


class Stage:
    """One broker for many plays.

    Args:
        broker: migrated, not yet prepared; its lifetime is the caller's.
    """

    def __init__(self, broker: ProofBroker) -> None:
        self.broker = broker
        self._worker: ManagedProcess | None = None
        self._worker_program: tuple[str, ...] = PROGRAM
        self._bug_file = broker.directory / "bug"
        self._sound_url = ""
        self._broken_url = ""
        self.api_url = ""
        self.keys: dict[str, str] = {}

    def prepare(self) -> None:
        """Make tenants and the transactional table, apply its contract, start target and API."""
        self.broker.prepare()
        self.keys = {name: self.broker.add_tenant(name) for name in (TENANT, OTHER_TENANT)}
        demo_ledger.create(self.broker.superuser_url)
        document = catalog_documents()["demo-ledger-transactional"]
        text = document.canonical().decode()
        self.broker.apply(
            ContractDocument.parse_yaml(
                text.replace('"demo.post_entry"', f'"{_TABLE_TOOL}"').replace(
                    '"attempt_deadline_seconds":5', '"attempt_deadline_seconds":1.5'
                )
            )
        )
        self.broker.start_api()
        self._sound_url = str(self.broker.http.base_url).rstrip("/")

    def cast(self, bug: Bug | None) -> None:
        """Let the processes of the next play run, with the bug where there is one.

        Sound processes are the ordinary program. The broken ones hold every bug and have the one
        that is chosen, so that they serve many plays too.
        """
        choose(self._bug_file, "" if bug is None else bug.name)
        self.use_worker(_BROKEN if bug is not None and bug.process == "worker" else PROGRAM)
        self.api_url = self._sound_url
        if bug is not None and bug.process == "api":
            self.api_url = self._broken_api_url()
        wait_until(lambda: None if self._busy() else True, "earlier plays at rest")

    def _broken_api_url(self) -> str:
        if not self._broken_url:
            self._broken_url = self.broker.stack.api(
                environment={ENV_BUG_FILE: str(self._bug_file)}, program=_BROKEN
            ).wait_ready(_READY_SECONDS)
        return self._broken_url

    def use_worker(self, program: tuple[str, ...]) -> None:
        """Have one worker of this program and no other."""
        alive = self._worker is not None and self._worker.alive
        if alive and program == self._worker_program:
            return
        self._worker_program = program
        self.stop_worker()
        self.start_worker()

    def start_worker(self) -> None:
        """Start a worker of the present program, as a successor or after `stop_worker`."""
        bug_file = {ENV_BUG_FILE: str(self._bug_file)}
        self._worker = self.broker.stack.worker(bug_file, self._worker_program)
        self._worker.wait_ready(_READY_SECONDS)

    def stop_worker(self) -> None:
        """Kill the worker, if there is one."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    @property
    def worker(self) -> ManagedProcess:
        assert self._worker is not None, "there is no worker now"
        return self._worker

    def _busy(self) -> bool:
        with psycopg.connect(self.broker.superuser_url) as connection:
            row = connection.execute(_BUSY).fetchone()
        assert row is not None, "a sum is one row"
        return int(row[0]) > 0


class Play:
    """One run of one scenario; what happens is recorded in `folder`."""

    def __init__(self, stage: Stage, name: str, patience_seconds: float, folder: Path) -> None:
        self.stage = stage
        self.broker = stage.broker
        self.target = stage.broker.target.client
        self.kind = name
        self.tool = f"proof.{name}"
        self.recorder = Recorder(folder)
        self.patience_seconds = patience_seconds
        self._callers: dict[str, RecordedCaller] = {}
        self._effects: dict[Operation, str] = {}
        self._loosened: str | None = None

    def close(self) -> None:
        """Let go of connections and files, and give the schema its rules back."""
        if self._loosened is not None:
            self._ask(f"ALTER TABLE {_INTENTS} ADD CONSTRAINT {_INTENT_RULES} {self._loosened}")
        for caller in self._callers.values():
            caller.close()
        self.recorder.__exit__(None, None, None)

    def caller(self, tenant: str = TENANT) -> RecordedCaller:
        """Return the caller of a tenant."""
        if tenant not in self._callers:
            self._callers[tenant] = RecordedCaller(
                self.recorder, tenant, self.stage.keys[tenant], lambda: self.stage.api_url
            )
        return self._callers[tenant]

    # -- before ----------------------------------------------------------------------------------

    def contract(
        self,
        catalog: str,
        mode: ModeName,
        *,
        target: Mapping[str, Any] | None = None,
        **members: Any,
    ) -> None:
        """Apply a contract for this play's tool, and set how the target treats its kind."""
        self.target.set_mode(self.kind, mode, **dict(target or {}))
        members = {"attempt_deadline_seconds": _ATTEMPT_SECONDS, **members}
        self.broker.apply(tuned(catalog, self.broker.target.url, self.kind, **members))

    def operation(
        self, safety: Safety, name: str = "1", tenant: str = TENANT, **expected: Any
    ) -> Operation:
        """Add an operation to the workload."""
        key = f"{self.kind}:{name}"
        marker = records.marker_of(tenant, key)
        tool = _TABLE_TOOL if safety is Safety.TRANSACTIONAL else self.tool
        kind = "entries" if safety is Safety.TRANSACTIONAL else self.kind
        arguments = self.arguments(safety, marker)
        digest = records.digest_of({"tool": tool, "arguments": arguments})
        operation = Operation(tenant, key, tool, kind, safety, marker, digest, **expected)
        return self.recorder.expect(operation)

    def arguments(self, safety: Safety, marker: str, amount: int = 1200) -> dict[str, Any]:
        """Return the arguments that an operation is submitted with."""
        money = {"amount": amount, "currency": "eur"}
        if safety is Safety.TRANSACTIONAL:
            return {"debit": self.kind, "credit": "b", "memo": marker, **money}
        return {"order": marker, **money}

    def loosen(self) -> None:
        """Take the schema's own rules on an intent away until the play ends.

        They refuse the row of an open effect that neither acts nor waits for a person: a bug that
        forgets the next action comes to light only where they are missing too.
        """
        (rules,) = self._ask(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
            f" WHERE conname = '{_INTENT_RULES}' AND conrelid = '{_INTENTS}'::regclass"
        )
        self._ask(f"ALTER TABLE {_INTENTS} DROP CONSTRAINT {_INTENT_RULES}")
        self._loosened = rules

    def _ask(self, query: str) -> list[str]:
        """Run a statement as superuser; return the first column."""
        with psycopg.connect(self.broker.superuser_url) as connection:
            cursor = connection.execute(query.encode())
            return [str(row[0]) for row in cursor] if cursor.description else []

    # -- while -----------------------------------------------------------------------------------

    def submit(self, operation: Operation, *, amount: int = 1200) -> httpx.Response | None:
        """Submit once; the first effect id that comes back is the operation's."""
        response = self.caller(operation.tenant).submit(
            operation.operation_key,
            operation.tool,
            self.arguments(operation.safety, operation.marker, amount),
        )
        if response is not None and response.is_success:
            self._effects.setdefault(operation, response.json()["effect_id"])
        return response

    def look(self, operation: Operation, wait: float = 0.0) -> dict[str, Any]:
        """Read the effect once, as its own tenant; empty where nothing is shown."""
        if operation not in self._effects:
            return {}
        response = self.caller(operation.tenant).effect(
            operation.operation_key, self._effects[operation], wait
        )
        if response is None or not response.is_success:
            return {}
        body: dict[str, Any] = response.json()
        return body

    def rest(self, operation: Operation) -> None:
        """Look until the effect is final or waits for a person, or until patience ends."""
        if operation not in self._effects:
            return
        ends_at = time.monotonic() + self.patience_seconds
        while (left := ends_at - time.monotonic()) > 0:
            body = self.look(operation, min(left, _POLL_SECONDS))
            if body.get("final") or body.get("waits_for_person"):
                return

    def seen(self, operation: Operation, state: str) -> None:
        """Look until the effect is in a state, or final, which comes after it."""

        def there() -> bool | None:
            body = self.look(operation)
            return body.get("state") == state or body.get("final") or None

        wait_until(there, f"{operation.name} {state}", SETTLE_SECONDS)

    def peek(self, operation: Operation, tenant: str) -> None:
        """Ask for the effect as another tenant."""
        self.caller(tenant).effect(operation.operation_key, self._effects[operation])

    def receipt(self, operation: Operation) -> None:
        """Read the receipt once."""
        self.caller(operation.tenant).receipt(operation.operation_key, self._effects[operation])

    def arm(self, point: FaultPoint, action: FaultAction = FaultAction.KILL) -> None:
        """Arm a fault point for the worker."""
        self.broker.arm(point, action)

    def wait_fired(self, point: FaultPoint, action: FaultAction = FaultAction.KILL) -> None:
        """Wait until the worker has met the point."""
        self.broker.wait_fired(point, action)

    def replace_worker(self, point: FaultPoint) -> None:
        """Wait until the armed point has killed the worker, and start its successor."""
        self.wait_fired(point)
        self.stage.start_worker()

    def lose_run(self, operation: Operation) -> None:
        """Delete the engine's row of the effect's run."""
        with psycopg.connect(self.broker.superuser_url) as connection:
            connection.execute(
                "DELETE FROM dbos.workflow_status WHERE workflow_uuid LIKE %s",
                [f"{self._effects[operation]}%"],
            )

    def wait_stopped(self, point: FaultPoint) -> None:
        """Wait until the armed point has stopped the worker."""
        self.wait_fired(point, FaultAction.STOP)
        wait_until(lambda: True if self.stage.worker.stopped else None, "stopped", SETTLE_SECONDS)

    def pause(self, seconds: float) -> None:
        """Let time pass, where it is time that is tested."""
        threading.Event().wait(seconds)

    # -- after -----------------------------------------------------------------------------------

    def finish(self) -> Path:
        """Look at every effect and its receipt once more; write the evidence."""
        quiet_began_at = time.monotonic()
        for operation in self._effects:
            self.look(operation)
            self.receipt(operation)
        return self.recorder.finish(
            ledger=self.broker.target.ledger_path,
            database_url=self.broker.superuser_url,
            quiet_began_at=quiet_began_at,
            kinds={self.kind},
            debit=self.kind,
        )
