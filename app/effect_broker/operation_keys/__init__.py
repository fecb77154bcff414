"""Operation keys out of what stays the same when a framework tries again.

`from_steps` makes a key of named parts. Each framework has a module of its own below, which takes
the framework's own objects and imports nothing of it: `temporal`, `dbos`, `langgraph`,
`pydantic_ai`, `openai_agents`, `celery`, `restate`; `tool_calls` is for every other agent.
docs/operation-keys.md says which id survives what.

A key that these functions make is the same in every release: they are pure functions of what they
are given, and tests pin their results. What is known to change between two tries of one intent is
refused with `KeyRefused`. `key_smells` is the hint for keys that are made in another way; nothing
is ever refused because of it.
"""

from effect_broker.operation_keys.segments import KeyRefusal, KeyRefused, Segment, from_steps
from effect_contracts.key_smells import Smell, key_smells

__all__ = ["KeyRefusal", "KeyRefused", "Segment", "Smell", "from_steps", "key_smells"]
