"""OpenAI Agents SDK: a tool whose call the model makes again, and one that waits in a stored state.

The model is a script. It gives each call a new id, as the real ones do.
"""

# The framework is in the environment that this program runs in, not in the one that checks it.
# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, ModelResponse, RunConfig, Runner, RunState, Usage, function_tool
from agents.models.interface import Model
from agents.tool_context import ToolContext
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from sightings import key_or_refusal, sighted

from effect_broker.operation_keys.openai_agents import call_key, request_key

QUIET = RunConfig(tracing_disabled=True)
REQUEST = "request-7"


class Now:
    """What is going on, and how often the tool still fails."""

    scenario = ""
    failures = 0


def _tool() -> str:
    return "charge_if_approved" if Now.scenario == "stored_state" else "charge"


class Scripted(Model):
    """Calls the tool until it has answered without an error."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **settings: Any
    ) -> ModelResponse:
        """Return one answer."""
        number = next(self._numbers)
        answered = not isinstance(input, str) and any(
            item.get("type") == "function_call_output" and item.get("output") == "charged"
            for item in input
        )
        if answered:
            text = ResponseOutputText(text="done", type="output_text", annotations=[])
            said = ResponseOutputMessage(
                id=f"msg_{number}", content=[text], role="assistant", status="completed",
                type="message",
            )  # fmt: skip
            return ModelResponse(output=[said], usage=Usage(), response_id=None)
        call = ResponseFunctionToolCall(
            call_id=f"call_{number:024x}", name=_tool(), arguments='{"order": 42}',
            type="function_call",
        )  # fmt: skip
        return ModelResponse(output=[call], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **settings: Any) -> AsyncIterator[Any]:
        """Never asked for here."""
        raise NotImplementedError


def _charge(context: ToolContext[Any], order: int) -> str:
    sighted(
        Now.scenario,
        {"tool_call_id": context.tool_call_id},
        {
            "request": request_key(context, REQUEST, order),
            "call": call_key(context, "state-7"),
            "with_call_id": key_or_refusal(
                lambda: request_key(context, REQUEST, context.tool_call_id)
            ),
        },
    )
    if Now.failures:
        Now.failures -= 1
        raise ConnectionError("the tool fails")
    return "charged"


@function_tool
def charge(context: ToolContext[Any], order: int) -> str:
    """Charge an order."""
    return _charge(context, order)


@function_tool(needs_approval=True, name_override="charge_if_approved")
def charge_if_approved(context: ToolContext[Any], order: int) -> str:
    """Charge an order, after a person has said so."""
    return _charge(context, order)


async def main() -> None:
    """Run every scenario."""
    agent: Agent[Any] = Agent("cashier", model=Scripted(), tools=[charge, charge_if_approved])

    Now.scenario, Now.failures = "failed_tool", 1
    await Runner.run(agent, "charge order 42", run_config=QUIET)

    Now.scenario = "second_run"
    for _ in range(2):
        await Runner.run(agent, "charge order 42", run_config=QUIET)

    Now.scenario = "stored_state"
    waiting = await Runner.run(agent, "charge order 42", run_config=QUIET)
    stored = waiting.to_state().to_string()
    for _ in range(2):
        state = await RunState.from_string(agent, stored)
        for asked in state.get_interruptions():
            state.approve(asked)
        await Runner.run(agent, state, run_config=QUIET)


if __name__ == "__main__":
    asyncio.run(main())
