"""What a model says and sees: replies, calls, tools. The one thing missing here is a lever.

A model picks a tool by its name, and its arguments. No type of this file has room for an operation
key, a safety class or a wish to send again, so that no sentence that a model reads, of a user or
of a stranger behind a tool, can move one of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict

Message: TypeAlias = Mapping[str, Any]
"""One message of a chat, in the form of the chat completions API."""


class Call(BaseModel):
    """One call that a model asks for. `arguments` is the text that it wrote, JSON or not."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    call_id: str
    tool: str
    arguments: str


class Reply(BaseModel):
    """What a model answered; without calls it is done."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    text: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the agent may use in a run.

    Attributes:
        name: the model's word for it.
        tool: the broker's name; its contract has the safety class, which no model sees.
        parameters: a JSON Schema that takes nothing but what it names.
        times_max: how many effects of it one run may have. Whoever gives out the task says so.
    """

    name: str
    tool: str
    description: str
    parameters: Mapping[str, Any]
    times_max: int = 1

    def schema(self) -> Message:
        """Return what a model is shown of it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


class ModelProvider(Protocol):
    """Where decisions of a model come from."""

    async def decide(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Reply:
        """Return the next reply. It has no effect, so it may be asked again after a crash.

        Raises:
            ModelUnavailable: there is no answer, or none that can be read.
        """
        ...


class ModelUnavailable(Exception):
    """The model gave no answer that can be used. The text names no key and quotes no stranger."""


def tools_digest(tools: Sequence[Tool]) -> str:
    """Return the SHA-256 of all that decides what a call means; a run keeps its tools."""
    told = [[tool.schema(), tool.tool, tool.times_max] for tool in tools]
    return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
