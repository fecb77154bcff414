"""Pydantic AI: a tool whose call the model makes again, in one run, in the next, and from a store.

The model is a function. It makes its calls without an id, as many do; the framework gives each one.
"""

# The framework is in the environment that this program runs in, not in the one that checks it.
# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from sightings import key_or_refusal, sighted

from effect_broker.operation_keys.pydantic_ai import call_key, request_key


@dataclass
class Request:
    """What the agent works on; stored before its first run."""

    request_id: str
    scenario: str
    refusals: int = 0


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool until it has answered."""
    parts = [part for message in messages for part in message.parts]
    if any(isinstance(part, ToolReturnPart) and part.content == "charged" for part in parts):
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart("charge", {"order": 42})])


agent = Agent(FunctionModel(answer), deps_type=Request, retries=3)


@agent.tool
def charge(context: RunContext[Request], order: int) -> str:
    """Tells what it is called with; refuses the arguments as often as the request says."""
    request = context.deps
    sighted(
        request.scenario,
        {
            "run_id": context.run_id,
            "conversation_id": context.conversation_id,
            "tool_call_id": context.tool_call_id,
            "retry": context.retry,
        },
        {
            "request": request_key(context, request.request_id, order),
            "call": call_key(context, "history-7"),
            "with_call_id": key_or_refusal(
                lambda: request_key(context, request.request_id, str(context.tool_call_id))
            ),
            "of_the_run": key_or_refusal(lambda: request_key(context, str(context.run_id), order)),
        },
    )
    if request.refusals:
        request.refusals -= 1
        raise ModelRetry("once more")
    return "charged"


def main() -> None:
    """Run every scenario."""
    agent.run_sync("charge order 42", deps=Request("request-7", "model_retry", refusals=1))

    first = agent.run_sync("charge order 42", deps=Request("request-7", "second_run"))
    agent.run_sync("charge order 42", deps=Request("request-7", "second_run"))

    # A process stored the model's answer and died before, or in, the tool.
    until_call = next(
        number
        for number, message in enumerate(first.all_messages(), start=1)
        if any(isinstance(part, ToolCallPart) for part in message.parts)
    )
    stored = ModelMessagesTypeAdapter.dump_json(first.all_messages()[:until_call])
    for _ in range(2):
        history = ModelMessagesTypeAdapter.validate_json(stored)
        agent.run_sync(message_history=history, deps=Request("request-7", "stored_call"))


if __name__ == "__main__":
    main()
