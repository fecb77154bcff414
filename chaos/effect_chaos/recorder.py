"""Makes an evidence folder out of a running broker: the calls, the target's ledger, the table.

It asks nobody what happened inside. A call is written down by the caller's side, with what came
back; the target's ledger is read from its own file, the transactional table from the database. No
code of the broker is imported, so that a mistake of the broker cannot become one of the evidence.

The promises: a call is in the file before its result is given to the caller's code, whatever came
of it, so that a run that is cut off leaves what it has seen; calls may come from several threads.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psycopg

from effect_chaos import records
from effect_chaos.records import (
    Answer,
    Arrival,
    Invocation,
    Operation,
    Run,
    Setting,
    TableRow,
    TargetObject,
    Verb,
)

CALL_SECONDS = 30.0
_WHOLE = ("whole", "early")  # the states of a body that count as a received request


class Recorder:
    """One evidence folder that is being written."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.began_at = time.monotonic()
        self._lock = threading.Lock()
        self._count = 0
        self._operations: dict[tuple[str, str], Operation] = {}
        self._history = (folder / records.HISTORY_FILE).open("w")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._history.close()

    def expect(self, operation: Operation) -> Operation:
        """Add an operation of the workload; once for each (tenant, operation key)."""
        with self._lock:
            key = (operation.tenant, operation.operation_key)
            assert key not in self._operations, f"{operation.name} is there already"
            self._operations[key] = operation
        return operation

    def call(
        self,
        verb: Verb,
        tenant: str,
        operation_key: str,
        ask: Callable[[], httpx.Response],
        *,
        effect_id: str | None = None,
        request_digest: str | None = None,
    ) -> httpx.Response | None:
        """Make one call and write it down; None if no answer came."""
        began_at = time.monotonic()
        response: httpx.Response | None = None
        with suppress(httpx.TransportError):  # it may have been carried out all the same
            response = ask()
        self.note(
            Invocation(
                n=0,
                verb=verb,
                tenant=tenant,
                operation_key=operation_key,
                began_at=began_at,
                ended_at=time.monotonic(),
                answer=None if response is None else answer_of(verb, response),
                effect_id=effect_id,
                request_digest=request_digest,
            )
        )
        return response

    def note(self, invocation: Invocation) -> None:
        """Write down a call that was made elsewhere; its number is given here."""
        with self._lock:
            self._count += 1
            members = {name: getattr(invocation, name) for name in Invocation.__slots__}
            self._history.write(records.line(Invocation(**{**members, "n": self._count})))
            self._history.flush()

    def finish(
        self,
        *,
        ledger: Path,
        database_url: str | None = None,
        seed: int = 0,
        quiet_began_at: float | None = None,
        settings: Mapping[str, Setting] | None = None,
        kinds: Collection[str] | None = None,
        debit: str | None = None,
    ) -> Path:
        """Write the rest of the folder.

        `database_url` is needed where transactional operations ran. Where several runs share a
        target and a table, `kinds` and `debit` leave out what is of others; a run that has its
        own gives neither, so that nothing is overlooked.
        """
        ended_at = time.monotonic()
        run = Run(
            seed=seed,
            seconds=ended_at - self.began_at,
            began_at=self.began_at,
            quiet_began_at=quiet_began_at,
            ended_at=ended_at,
            settings=dict(settings or {}),
        )
        records.write_run(self.folder, run)
        records.write_lines(self.folder / records.OPERATIONS_FILE, self._operations.values())
        received = (a for a in arrivals(ledger) if kinds is None or a.kind in kinds)
        made = (o for o in objects(ledger) if kinds is None or o.kind in kinds)
        rows = () if database_url is None else table_rows(database_url, debit)
        records.write_lines(self.folder / records.ARRIVALS_FILE, received)
        records.write_lines(self.folder / records.OBJECTS_FILE, made)
        records.write_lines(self.folder / records.ROWS_FILE, rows)
        self._history.close()
        return self.folder


class RecordedCaller:
    """A caller of one tenant, all of whose calls are written down.

    Args:
        address: gives the base URL of an API process, asked for each call anew.
    """

    def __init__(
        self, recorder: Recorder, tenant: str, api_key: str, address: Callable[[], str]
    ) -> None:
        self.tenant = tenant
        self._recorder = recorder
        self._address = address
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"}, timeout=CALL_SECONDS, trust_env=False
        )

    def close(self) -> None:
        self._http.close()

    def submit(
        self, operation_key: str, tool: str, arguments: Mapping[str, Any], wait: float = 0.0
    ) -> httpx.Response | None:
        """Submit once."""
        body = {"operation_key": operation_key, "tool": tool, "arguments": dict(arguments)}
        return self._recorder.call(
            Verb.SUBMIT,
            self.tenant,
            operation_key,
            lambda: self._http.post(
                f"{self._address()}/v1/effects", json=body, params={"wait": wait}
            ),
            request_digest=records.digest_of({"tool": tool, "arguments": arguments}),
        )

    def effect(
        self, operation_key: str, effect_id: str, wait: float = 0.0
    ) -> httpx.Response | None:
        """Read an effect; `operation_key` is what the caller believes it to be."""
        return self._get(Verb.GET, operation_key, effect_id, f"/{effect_id}", {"wait": wait})

    def receipt(self, operation_key: str, effect_id: str) -> httpx.Response | None:
        """Read the receipt of an effect."""
        return self._get(Verb.RECEIPT, operation_key, effect_id, f"/{effect_id}/receipt", {})

    def listing(self, operation_prefix: str) -> httpx.Response | None:
        """Read the first page of the tenant's effects."""
        asked = {"operation_prefix": operation_prefix} if operation_prefix else {}
        return self._get(Verb.LIST, operation_prefix, None, "", asked)

    def cancel(self, operation_key: str, effect_id: str) -> httpx.Response | None:
        """Ask to cancel an effect."""
        return self._recorder.call(
            Verb.CANCEL,
            self.tenant,
            operation_key,
            lambda: self._http.post(f"{self._address()}/v1/effects/{effect_id}/cancel"),
            effect_id=effect_id,
        )

    def _get(
        self,
        verb: Verb,
        operation_key: str,
        effect_id: str | None,
        path: str,
        asked: Mapping[str, Any],
    ) -> httpx.Response | None:
        return self._recorder.call(
            verb,
            self.tenant,
            operation_key,
            lambda: self._http.get(f"{self._address()}/v1/effects{path}", params=dict(asked)),
            effect_id=effect_id,
        )


# -- answers -------------------------------------------------------------------------------------


def answer_of(verb: Verb, response: httpx.Response) -> Answer:
    """Return what an answer showed; a body that is no JSON object shows its status only."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        return Answer(response.status_code)
    if response.status_code >= 400:
        return Answer(
            response.status_code,
            code=_text(body.get("code") or body.get("type")),
            effect_id=_text(body.get("effect_id")),
        )
    if verb is Verb.RECEIPT:
        return _receipt(response.status_code, body)
    if verb is Verb.LIST:
        listed = tuple(
            f"{effect['effect_id']} {effect['operation_key']}" for effect in body["effects"]
        )
        return Answer(response.status_code, listed=listed)
    return Answer(
        status=response.status_code,
        effect_id=_text(body.get("effect_id")),
        operation_key=_text(body.get("operation_key")),
        state=_text(body.get("state")),
        version=body.get("version"),
        final=body.get("final"),
        waits_for_person=body.get("waits_for_person"),
        reason=_text(body.get("reason")),
        next_action_at=_text(body.get("next_action_at")),
        receipt_digest=_text(body.get("receipt_digest")),
        alerts=() if body.get("alert") is None else (str(body["alert"]),),
    )


def _receipt(status: int, body: Mapping[str, Any]) -> Answer:
    content = body["receipt"]
    # The receipt holds ASCII names and whole numbers only, so that this is its canonical form.
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return Answer(
        status=status,
        effect_id=_text(content.get("effect_id")),
        operation_key=_text(content.get("operation_key")),
        state=_text(content.get("state")),
        reason=_text(content.get("reason")),
        receipt_digest=_text(body.get("digest")),
        external_id=_text(content.get("external_id")),
        content=hashlib.sha256(canonical.encode()).hexdigest(),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


# -- the target and the table --------------------------------------------------------------------


def arrivals(ledger: Path) -> Iterator[Arrival]:
    """Every request in the target's ledger file; the target may be running, or dead."""
    for row in _ledger_rows(ledger, "SELECT * FROM arrivals ORDER BY n"):
        yield Arrival(
            n=row["n"],
            kind=row["kind"],
            method=row["method"],
            path=row["path"],
            mutating=bool(row["mutating"]),
            received=row["body_state"] in _WHOLE,
            downstream_key=row["downstream_key"],
            correlation_key=row["correlation_key"],
            body_digest=row["body_digest"],
            text=f"{row['query']}\n{bytes(row['body']).decode('utf-8', 'replace')}",
            plan=row["plan"],
            received_monotonic=row["received_monotonic"],
            received_at=row["received_at"],
        )


def objects(ledger: Path) -> Iterator[TargetObject]:
    """Every mutation in the target's ledger file."""
    for row in _ledger_rows(ledger, "SELECT * FROM effects ORDER BY n"):
        yield TargetObject(
            n=row["n"],
            kind=row["kind"],
            object_id=row["object_id"],
            name=row["name"],
            downstream_key=row["downstream_key"],
            correlation_key=row["correlation_key"],
            arrival_n=row["arrival_n"],
            item=row["item"],
            text=row["content"],
            committed_at=row["committed_at"],
        )


def table_rows(database_url: str, debit: str | None = None) -> Iterator[TableRow]:
    """Every row of the demo's transactional ledger, or those that debit one account."""
    query = (
        "SELECT entry_id::text, downstream_key, memo FROM effect_broker_demo.entries"
        " WHERE %(debit)s::text IS NULL OR debit = %(debit)s ORDER BY entry_id"
    )
    with psycopg.connect(database_url) as connection:
        for external_id, downstream_key, memo in connection.execute(query, {"debit": debit}):
            yield TableRow("entries", external_id, downstream_key, memo or "")


def _ledger_rows(ledger: Path, query: str) -> Iterator[sqlite3.Row]:
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        yield from connection.execute(query)
