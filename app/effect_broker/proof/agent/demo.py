"""The demo of the agent: kill it with SIGKILL in the middle, start it again, count at the target.

The first request of the run is held by the target after it has committed and before it has
answered; there the agent's process is killed. The process that follows has the same run id, the
same journal, and a model that would plan the same task in another order. The courier's target
loses its answer, so that one step has an outcome that nobody knows.

States are what the broker says, requests and effects what the target's own ledger says. The word
of the agent counts for what it has planned and for nothing else.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effect_broker.proof.agent.__main__ import ENDED
from effect_broker.proof.agent.scripted import TASK
from effect_broker.proof.agent.toolbox import KINDS, contracts
from effect_broker.proof.broker import ProofBroker, wait_until
from effect_broker.proof.demo import Check
from effect_broker.proof.stack import ManagedProcess, ProcessNotReady
from effect_broker.proof.target.client import LedgerView
from effect_broker.sdk.access import ENV_API_KEY, ENV_URL

RUN_ID = "demo"
JOURNAL = "agent-journal.jsonl"
_PROGRAM = ("effect_broker.proof.agent",)
# A model over the network may think that long before its first call, and in a whole run.
_FIRST_CALL_SECONDS = 180.0
_RUN_SECONDS = 600.0
_SCRIPT = {
    "charge_card": "succeeded",
    "refund_payment": "succeeded",
    "pay_courier": "outcome_unknown",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """What is asked of the demo. `environment` is for the agent's process alone."""

    provider: str = "scripted"
    model: str | None = None
    task: str = TASK
    crash: bool = True
    environment: Mapping[str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One line of the table."""

    step: int
    tool: str
    safety: str
    operation_key: str
    state: str
    requests: int
    effects: int

    @property
    def passed(self) -> bool:
        """Whether the target's count is what the state permits."""
        match self.state:
            case "succeeded" | "compensated":
                return self.effects == 1
            case "failed_final" | "cancelled":
                return self.effects == 0
            case _:
                return self.effects <= 1


@dataclass(frozen=True, slots=True)
class AgentResult:
    """What the demo has seen. `for_person` are the steps that are not settled."""

    rows: tuple[StepRow, ...]
    checks: tuple[Check, ...]
    for_person: tuple[int, ...]
    text: str | None

    @property
    def passed(self) -> bool:
        """Whether every count is right and every check held."""
        return all(row.passed for row in self.rows) and all(check.held for check in self.checks)


class AgentFailed(Exception):
    """The agent's process did not come to its end; the text is its last line."""


def run_agent(broker: ProofBroker, choice: Choice, tell: Callable[[str], None]) -> AgentResult:
    """Run the demo on a prepared broker with an API and a worker.

    Raises:
        AgentFailed, NotInTime.
    """
    target = broker.target.client
    for kind, _, mode in KINDS.values():
        target.set_mode(kind, mode)
    broker.apply(*contracts(broker.target.url))
    target.script("commit;RST", kind=KINDS["pay_courier"][0], repeat_last=True)
    api_key = broker.add_tenant("agent")
    journal = broker.directory / JOURNAL
    killed_with: int | None = None
    if choice.crash:
        target.script("gate(agent)")
        tell("the agent plans; it is killed with SIGKILL when the target has made the first effect")
        first = _agent(broker, choice, api_key, journal)
        wait_until(lambda: _held(broker, first), "the first request", _FIRST_CALL_SECONDS)
        first.kill()
        killed_with = first.wait_ended()
        target.release("agent")
        tell("the agent is started again, with the same run id; its model may plan anew")
    life = _agent(broker, choice, api_key, journal, reworded=choice.crash)
    report = _ended(life)
    with closing(broker.client(str(broker.http.base_url), api_key)) as http:
        rows = [_row(broker, step, _effect(http.get, step)) for step in report["steps"]]
        intents = len(http.get("/v1/effects").raise_for_status().json()["effects"])
    checks = [
        Check("every effect at the target belongs to a step", _effects(broker) == _sum(rows)),
        Check("one intent for each step, and no other", intents == len(rows)),
        Check("something was done at the target", _effects(broker) > 0),
        Check("the run came to its end", report["text"] is not None),
    ]
    if choice.crash:
        checks.append(Check("the agent was killed by SIGKILL", killed_with == -signal.SIGKILL))
    if choice.provider == "scripted":
        checks += _script_checks(rows, report, choice)
    for_person = tuple(step["step"] for step in report["steps"] if step["for_person"])
    return AgentResult(tuple(rows), tuple(checks), for_person, report["text"])


def _script_checks(rows: list[StepRow], report: Mapping[str, Any], choice: Choice) -> list[Check]:
    asked = 2 if choice.crash else 3
    return [
        Check(
            "the plan of the first life was carried out, each step once",
            [(row.tool, row.state, row.effects) for row in rows]
            == [(tool, state, 1) for tool, state in _SCRIPT.items()],
        ),
        Check("no reply that was written down was asked for again", report["turns_asked"] == asked),
        Check(
            "the model could neither try the unknown payment again nor bring a key of its own",
            report["refused"] == ["outcome_not_settled", "invalid_arguments"],
        ),
        Check("the unknown payment was sent once", rows[-1].requests == 1),
    ]


def _agent(
    broker: ProofBroker, choice: Choice, api_key: str, journal: Path, *, reworded: bool = False
) -> ManagedProcess:
    arguments = [RUN_ID, "--journal", str(journal), "--task", choice.task]
    arguments += ["--provider", choice.provider]
    if choice.model is not None:
        arguments += ["--model", choice.model]
    if reworded:
        arguments.append("--reworded")
    environment = {
        **(choice.environment or {}),
        ENV_URL: str(broker.http.base_url),
        ENV_API_KEY: api_key,
    }
    return broker.stack.start(arguments, ENDED, environment, _PROGRAM)


def _held(broker: ProofBroker, agent: ManagedProcess) -> bool | None:
    if not agent.alive:
        nothing = "the model asked for no effect, so there was nothing to kill it in"
        raise AgentFailed(nothing if agent.ready else _last_line(agent))
    return broker.target.client.ledger(rows=False).held > 0 or None


def _ended(agent: ManagedProcess) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(agent.wait_ready(_RUN_SECONDS))
    except ProcessNotReady:
        raise AgentFailed(_last_line(agent)) from None
    agent.wait_ended()
    return report


def _last_line(agent: ManagedProcess) -> str:
    lines = agent.log.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("agent: ") if lines else "it ended without a word"


def _effect(get: Callable[[str], Any], step: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = get(f"/v1/effects/{step['effect_id']}").raise_for_status().json()
    return body


def _row(broker: ProofBroker, step: Mapping[str, Any], effect: Mapping[str, Any]) -> StepRow:
    ledger = broker.target.client.ledger(kind=KINDS[step["tool"]][0])
    return StepRow(
        step=step["step"],
        tool=step["tool"],
        safety=effect["safety"],
        operation_key=effect["operation_key"],
        state=effect["state"],
        requests=_requests(ledger, step["arguments"]),
        effects=sum(1 for row in ledger.effect_rows if _means(row.content, step["arguments"])),
    )


def _requests(ledger: LedgerView, arguments: Mapping[str, Any]) -> int:
    bodies = [json.loads(row.body) for row in ledger.arrival_rows if row.mutating]
    return sum(1 for body in bodies if _means(body, arguments))


def _means(content: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    return all(content.get(name) == value for name, value in arguments.items())


def _effects(broker: ProofBroker) -> int:
    target = broker.target.client
    return sum(target.ledger(kind=kind, rows=False).effects for kind, _, _ in KINDS.values())


def _sum(rows: list[StepRow]) -> int:
    return sum(row.effects for row in rows)
