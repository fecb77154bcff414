"""`python -m effect_broker.proof.agent`: one life of the demo's agent, as a process of its own.

It prints one line when the run is at its end: `agent ended ` and the report as JSON. It ends with
one line on standard error where it cannot go on; the same command again goes on with the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path

from effect_broker.operation_keys import KeyRefused
from effect_broker.proof.agent.journal import Journal, JournalProblem, RunLine
from effect_broker.proof.agent.loop import Agent, RunReport, RunStopped
from effect_broker.proof.agent.models import ChatProvider, ProviderNotConfigured, access_from
from effect_broker.proof.agent.rulings import operation_key
from effect_broker.proof.agent.scripted import ScriptedProvider, demo_script
from effect_broker.proof.agent.toolbox import TOOLS
from effect_broker.proof.agent.words import ModelUnavailable, tools_digest
from effect_broker.sdk import AsyncBroker, BrokerError

ENDED = "agent ended "


async def live(run_id: str, journal_path: Path, task: str, arguments: argparse.Namespace) -> None:
    """Carry the run out, from wherever its journal ends."""
    operation_key(run_id, 1)
    line = RunLine(run_id=run_id, task=task, tools=tools_digest(TOOLS))
    with Journal.open(journal_path, line) as journal:
        async with AsyncBroker.from_environment() as broker:
            report = await _run(broker, journal, arguments)
    print(ENDED + json.dumps(asdict(report)), flush=True)


async def _run(broker: AsyncBroker, journal: Journal, arguments: argparse.Namespace) -> RunReport:
    if arguments.provider == "scripted":
        scripted = ScriptedProvider(demo_script(reworded=arguments.reworded))
        return await Agent(broker, scripted, journal, TOOLS).run()
    access = access_from(arguments.provider, arguments.model, os.environ)
    async with aclosing(ChatProvider(access)) as provider:
        return await Agent(broker, provider, journal, TOOLS).run()


def main(given: list[str] | None = None) -> int:
    """Parse the arguments and live; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m effect_broker.proof.agent")
    parser.add_argument("run", help="the id of the run; the same id goes on with it")
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--provider", default="scripted")
    parser.add_argument("--model")
    parser.add_argument("--reworded", action="store_true", help="the script, on another day")
    arguments = parser.parse_args(given)
    try:
        asyncio.run(live(arguments.run, arguments.journal, arguments.task, arguments))
    except (
        BrokerError,
        JournalProblem,
        KeyRefused,
        OSError,
        ModelUnavailable,
        ProviderNotConfigured,
        RunStopped,
    ) as problem:
        print(f"agent: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
