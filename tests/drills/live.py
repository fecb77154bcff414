"""Live drills of every class, with real processes, seen from outside.

No ordinary worker runs until the drills' own workers are dead: what was sent until then, they sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from effect_broker.intake import Scope
from effect_broker.keyring import ENV_KEY_RING_FILE
from effect_broker.proof.broker import wait_until
from effect_broker.proof.contracts import QUICK, charge
from effect_broker.store import demo_ledger
from effect_broker.store.export import export_to
from effect_broker.store.pool import make_pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants
from effect_contracts.catalog import catalog_documents
from effect_contracts.document import ContractDocument
from hosting.scenes import LEASE_SECONDS, Scene

# Limits for a machine that is busy with other tests, not waits.
STARTED_SECONDS = 240.0
ENDED_SECONDS = 120.0
CLASSES = ("idempotent", "reconcilable", "unsafe", "transactional")
FIRST = "first"
SECOND = "second"
# A drill whose worker never comes.
NEVER_TAKEOVER_SECONDS = 2


class Command:
    """One running `effect-broker drill run`."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "effect_broker", "drill", "run", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self._out: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.stderr, self.said)),
            threading.Thread(target=self._read, args=(self._process.stdout, self._out)),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        with stream:
            for line in stream:
                lines.append(line)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_said(self, *words: str) -> None:
        """Wait until a line with some of these words is on standard error."""

        def seen() -> bool | None:
            ended = self._process.poll() is not None
            found = any(word in line for line in self.said for word in words)
            assert found or not ended, "".join(self.said)
            return found or None

        wait_until(seen, words[0], STARTED_SECONDS)

    def ended(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit code, standard output and standard error."""
        code = self._process.wait(ENDED_SECONDS)
        for reader in self._readers:
            reader.join()
        return code, "".join(self._out), "".join(self.said)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.ended()


@dataclass(frozen=True, slots=True)
class Live:
    """What was seen.

    Attributes:
        codes: exit code of each class's command.
        shown: the JSON that it printed.
        effects: the drilled effect of each class as the API shows it at last.
        others: effects that no drill was for, as they were when the drills' workers were dead.
    """

    scene: Scene
    codes: dict[str, int]
    shown: dict[str, dict[str, Any]]
    effects: dict[str, dict[str, Any]]
    others: list[dict[str, Any]]
    over_http: dict[str, dict[str, Any]] = field(default_factory=dict)


class LiveBroker:
    """A broker on which drills are run."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._commands: list[Command] = []
        self.http = self._operator()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.http.close()
        for command in self._commands:
            command.kill()

    @property
    def environment(self) -> dict[str, str]:
        """An operator's: the same variables as for a worker, and the API's URL to arm with."""
        broker = self.scene.broker
        kept = {n: v for n, v in os.environ.items() if not n.startswith("EFFECT_BROKER_")}
        return kept | {
            "EFFECT_BROKER_ENV": "production",
            "EFFECT_BROKER_API_DATABASE_URL": broker.url(DatabaseRole.API),
            "EFFECT_BROKER_WORKER_DATABASE_URL": broker.url(DatabaseRole.WORKER),
            "EFFECT_BROKER_HEARTBEAT_TTL_SECONDS": "1.5",
            "EFFECT_BROKER_HOME": str(broker.directory),
            ENV_KEY_RING_FILE: str(broker.directory / "keyring.json"),
        }

    def start(self, *arguments: str) -> Command:
        """Start a drill's command."""
        command = Command(self.environment, "--tenant", "proof", "--json", *arguments)
        self._commands.append(command)
        return command

    def _operator(self) -> httpx.Client:
        """A caller whose key may operate."""
        broker = self.scene.broker

        async def make() -> str:
            url = broker.url(DatabaseRole.ADMIN)
            async with make_pool(url, None, application_name="test-admin", size_max=1) as pool:
                scopes = [Scope.EFFECTS.value, Scope.OPERATE.value, Scope.ADMIN.value]
                return (await Tenants(pool).create_key("proof", scopes)).api_key

        return broker.client(str(broker.http.base_url), asyncio.run(make()))

    def submit(self, tool: str, order: str) -> str:
        """Submit an effect of any of the tools; return its id."""
        arguments: dict[str, Any] = charge(order)
        if tool == "proof.entry":
            arguments = {"debit": "a", "credit": "b", "amount": 1, "currency": "eur", "memo": order}
        answer = self.scene.broker.submit(f"{tool}:{order}", tool, arguments)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["effect_id"])

    def drill(self, drill_id: str) -> dict[str, Any]:
        """A drill over HTTP."""
        answer = self.http.get(f"/v1/drills/{drill_id}")
        answer.raise_for_status()
        body: dict[str, Any] = answer.json()
        return body

    def run(self) -> Live:
        """Drill one effect of each class, all at once."""
        scene, tools = self.scene, self._tools()
        commands = {safety: self.start("--tool", tool) for safety, tool in tools.items()}
        for command in commands.values():
            command.wait_said("armed for tool")
        other = scene.offer("undrilled")
        others = [self.submit(other, "a")]
        drilled = {safety: self.submit(tool, FIRST) for safety, tool in tools.items()}
        others += [self.submit(tool, SECOND) for tool in tools.values()]
        for command in commands.values():
            # Where the receipt stood already there is nothing between death and settlement.
            command.wait_said("the worker is dead", "settled")
        seen = [scene.broker.effect(effect_id) for effect_id in others]
        scene.start_workers(2)
        ended = {safety: command.ended() for safety, command in commands.items()}
        for code, out, said in ended.values():
            assert out, (code, said)
        scene.settled([*drilled.values(), *others])
        shown = {safety: json.loads(out) for safety, (_, out, _) in ended.items()}
        return Live(
            scene,
            {safety: code for safety, (code, _, _) in ended.items()},
            shown,
            {safety: scene.broker.effect(effect_id) for safety, effect_id in drilled.items()},
            seen,
            {safety: self.drill(body["drill_id"]) for safety, body in shown.items()},
        )

    def _tools(self) -> dict[str, str]:
        scene = self.scene
        demo_ledger.create(scene.broker.superuser_url)
        document = json.loads(catalog_documents()["demo-ledger-transactional"].canonical())
        document |= {"name": "proof-entry", "tool": "proof.entry", **QUICK}
        scene.broker.apply(ContractDocument.parse_yaml(json.dumps(document)))
        offered = {
            s: scene.offer(f"drilled_{s}", s, attempt_deadline_seconds=LEASE_SECONDS)
            for s in CLASSES[:-1]
        }
        return {**offered, "transactional": "proof.entry"}

    def exported(self, path: Path) -> list[bytes]:
        """Export everything as the worker's role; return the lines."""

        async def write() -> None:
            url = self.scene.broker.url(DatabaseRole.WORKER)
            async with make_pool(url, None, application_name="test-export", size_max=1) as pool:
                await export_to(pool, path)

        asyncio.run(write())
        return path.read_bytes().splitlines(keepends=True)
