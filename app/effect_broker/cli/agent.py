"""`effect-broker demo agent`: an agent that is killed in the middle, and what the target counts."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from effect_broker.cli.output import AsJson, complain, console, print_json, print_table

if TYPE_CHECKING:
    from effect_broker.proof.agent.demo import AgentResult, Choice
    from effect_broker.proof.broker import ProofBroker

Tell = Callable[[str], None]
Opens = Callable[[Path | None, Tell], AbstractContextManager["ProofBroker"]]


def register(app: typer.Typer, opens: Opens) -> None:
    """Add the command; `opens` starts the broker that it runs on."""

    @app.command("agent")
    def agent(
        provider: Annotated[
            str, typer.Option(help="scripted (no network, no key), openai or grok.")
        ] = "scripted",
        model: Annotated[
            str | None, typer.Option(help="The model; without it OPENAI_MODEL or XAI_MODEL.")
        ] = None,
        task: Annotated[
            str | None, typer.Option(help="What to do, in words; not for the scripted model.")
        ] = None,
        crash: Annotated[
            bool, typer.Option(help="Kill the agent in the middle, and start it again.")
        ] = True,
        as_json: AsJson = False,
        keep: Annotated[
            Path | None, typer.Option(help="Keep logs, journal and ledger in this directory.")
        ] = None,
    ) -> None:
        """Kill an agent between its plan and the answer, start it again, and count."""
        from effect_broker.proof.agent.demo import JOURNAL, AgentFailed, run_agent
        from effect_broker.proof.broker import NotInTime

        choice = _choice(provider, model, task, crash)
        if keep is not None and (keep / JOURNAL).exists():
            complain(f"{keep} holds an earlier run; --keep needs a directory without one")

        def tell(text: str) -> None:
            typer.echo(text, err=as_json)

        try:
            with opens(keep, tell) as broker:
                result = run_agent(broker, choice, tell)
        except (AgentFailed, NotInTime) as problem:
            complain(f"the agent did not come to its end: {problem}")
        if as_json:
            print_json(asdict(result) | {"passed": result.passed})
        else:
            _print(result)
        if not result.passed:
            complain("a count is not right")


def _choice(provider: str, model: str | None, task: str | None, crash: bool) -> Choice:
    """Look at the options before anything is started."""
    from effect_broker.proof.agent.demo import Choice
    from effect_broker.proof.agent.models import ENDPOINTS, ProviderNotConfigured, access_from
    from effect_broker.proof.agent.scripted import TASK

    if provider == "scripted":
        if task is not None or model is not None:
            complain(
                "the scripted model has one task: --task and --model need --provider openai|grok"
            )
        return Choice(crash=crash)
    if task is not None and not task.strip():
        complain("--task says nothing")
    try:
        access = access_from(provider, model, os.environ)
    except ProviderNotConfigured as problem:
        complain(str(problem))
    # The key is for the agent's process: not for the API, the workers and the target.
    variable = ENDPOINTS[provider].key_variable
    os.environ.pop(variable, None)
    environment = {variable: access.api_key}
    return Choice(provider, access.model, task or TASK, crash, environment)


def _print(result: AgentResult) -> None:
    print_table(
        "What the agent did, and what the target's own ledger says",
        ["step", "tool", "class", "state", "requests", "effects", "pass"],
        (
            [r.step, r.tool, r.safety, r.state, r.requests, r.effects, "yes" if r.passed else "no"]
            for r in result.rows
        ),
    )
    for check in result.checks:
        console().print(f"  {'ok  ' if check.held else 'FAIL'} {check.name}")
    for step in result.for_person:
        console().print(f"  step {step} waits for a person: its outcome is not known")
