"""Models over the network: OpenAI and Grok, by the official client, at their two addresses.

Both speak the chat completions API. The client's own retries are off: nobody asks twice behind the
back of the loop, which may be started again as often as one likes. Errors name the provider and a
status or a kind of failure; never the key, nor a sentence of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast

from effect_broker.proof.agent.words import Call, Message, ModelUnavailable, Reply, Tool

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

ANSWER_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a provider is found. `prefix` begins the names of its variables."""

    title: str
    prefix: str
    base_url: str

    @property
    def key_variable(self) -> str:
        """The variable with the key."""
        return f"{self.prefix}_API_KEY"


ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    "openai": Endpoint("OpenAI", "OPENAI", "https://api.openai.com/v1"),
    "grok": Endpoint("Grok", "XAI", "https://api.x.ai/v1"),
}


class ProviderNotConfigured(Exception):
    """The model cannot be asked: the text is one line that says what is missing."""


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """All that is needed to ask a model."""

    title: str
    base_url: str
    model: str
    api_key: str = field(repr=False)


def access_from(provider: str, model: str | None, environment: Mapping[str, str]) -> ModelAccess:
    """Return how a model is reached, by `--model` and `<PREFIX>_API_KEY`, `_MODEL`, `_BASE_URL`.

    Raises:
        ProviderNotConfigured.
    """
    endpoint = ENDPOINTS.get(provider)
    if endpoint is None:
        known = ", ".join(["scripted", *ENDPOINTS])
        raise ProviderNotConfigured(f"there is no provider {provider!r}; there are {known}")
    if find_spec("openai") is None:
        raise ProviderNotConfigured(
            f"{endpoint.title} needs the extra agent: pip install 'effect-broker[agent]'"
        )
    key = environment.get(endpoint.key_variable, "").strip()
    if not key:
        raise ProviderNotConfigured(f"{endpoint.title} needs a key in {endpoint.key_variable}")
    named = (model or environment.get(f"{endpoint.prefix}_MODEL", "")).strip()
    if not named:
        raise ProviderNotConfigured(
            f"{endpoint.title} needs the name of a model: --model, or {endpoint.prefix}_MODEL"
        )
    url = environment.get(f"{endpoint.prefix}_BASE_URL", "").strip() or endpoint.base_url
    return ModelAccess(endpoint.title, url, named, key)


class ChatProvider:
    """A model behind the chat completions API, asked with the official client."""

    def __init__(self, access: ModelAccess) -> None:
        from openai import AsyncOpenAI

        self._access = access
        self._client = AsyncOpenAI(
            api_key=access.api_key,
            base_url=access.base_url,
            max_retries=0,
            timeout=ANSWER_SECONDS,
        )
        if access.title != ENDPOINTS["openai"].title:
            # The client takes both from OPENAI_… variables, and would tell them to anybody.
            self._client.organization = None
            self._client.project = None

    async def decide(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Reply:
        """Ask once.

        Raises:
            ModelUnavailable.
        """
        import openai

        try:
            answer = await self._client.chat.completions.create(
                model=self._access.model,
                messages=cast(Any, list(messages)),
                tools=cast(Any, [tool.schema() for tool in tools]),
            )
        except openai.APIStatusError as problem:
            what = f"answered with status {problem.status_code}"
        except openai.APITimeoutError:
            what = f"did not answer within {ANSWER_SECONDS:g} s"
        except openai.APIConnectionError:
            what = "cannot be reached"
        except (openai.OpenAIError, ValueError):
            what = "answered with something that is no chat completion"
        else:
            return self._reply(answer)
        # Outside of the except blocks: the client's errors quote the answer.
        raise ModelUnavailable(f"{self._access.title} {what}")

    def _reply(self, answer: ChatCompletion) -> Reply:
        try:
            message = answer.choices[0].message
            calls = tuple(
                Call(call_id=c.id, tool=c.function.name, arguments=c.function.arguments)
                for c in message.tool_calls or ()
                if c.type == "function"
            )
            return Reply(text=message.content or "", calls=calls)
        except (AttributeError, IndexError, TypeError, ValueError):
            pass
        raise ModelUnavailable(
            f"{self._access.title} answered with something that is no chat completion"
        )

    async def aclose(self) -> None:
        """Close its connections."""
        await self._client.close()
