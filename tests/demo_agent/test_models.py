"""Models by the official client, on the wire: a scripted server stands where the provider is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from demo_agent.chat_server import ChatServer, chat_server, completion
from demo_agent.conftest import LIVE, Desk, asked_live
from effect_broker import AsyncBroker
from effect_broker.proof.agent import models
from effect_broker.proof.agent.loop import Agent
from effect_broker.proof.agent.models import ChatProvider, ProviderNotConfigured, access_from
from effect_broker.proof.agent.scripted import call
from effect_broker.proof.agent.toolbox import TOOLS
from effect_broker.proof.agent.words import ModelUnavailable, Reply
from repository.checkout import CHECKOUT

KEY = "sk-the-key-of-this-test"
CHARGE = call("call_7", "charge_card", order="42", amount=1200, currency="eur")
PREFIXES = {"openai": "OPENAI", "grok": "XAI"}


def provider(name: str, server: ChatServer) -> ChatProvider:
    prefix = PREFIXES[name]
    return ChatProvider(
        access_from(name, "a-model", {f"{prefix}_API_KEY": KEY, f"{prefix}_BASE_URL": server.url})
    )


async def ask(model: ChatProvider) -> Reply:
    async with aclosing(model):
        return await model.decide([{"role": "user", "content": "Pay."}], TOOLS)


def test_each_real_model_is_asked_where_its_own_key_is_given() -> None:
    for names in [(), ("openai",), ("grok",), ("openai", "grok")]:
        assert asked_live({LIVE[name]: KEY for name in names}) == list(names)
    # As pytest itself collects it, in a process with both keys.
    collected = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider",
         str(Path(__file__).with_name("test_live.py"))],
        cwd=CHECKOUT,
        env=os.environ | dict.fromkeys(LIVE.values(), KEY),
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    asked = re.findall(r"::test_a_real_model.*\[(\w+)\]", collected.stdout)
    assert asked == ["openai", "grok"]


def test_each_provider_has_its_own_address_key_and_model() -> None:
    openai = access_from("openai", None, {"OPENAI_API_KEY": KEY, "OPENAI_MODEL": "m1"})
    grok = access_from("grok", "m2", {"XAI_API_KEY": KEY, "XAI_MODEL": "m1"})
    assert (openai.base_url, openai.model) == ("https://api.openai.com/v1", "m1")
    assert (grok.base_url, grok.model) == ("https://api.x.ai/v1", "m2")
    assert KEY not in repr(openai)


@pytest.mark.parametrize("name", PREFIXES)
async def test_a_model_is_shown_the_tools_and_its_calls_are_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-openai")
    with chat_server((200, completion("I charge.", CHARGE))) as server:
        assert await ask(provider(name, server)) == Reply(text="I charge.", calls=(CHARGE,))
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.headers.get("openai-organization") == (
        "org-of-openai" if name == "openai" else None
    )
    assert asked.body["model"] == "a-model"
    assert asked.body["tools"] == [tool.schema() for tool in TOOLS]


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (500, {"error": {"message": "secret words"}}, "status 500"),
        (429, {"error": {"message": "secret words"}}, "status 429"),
        (401, {"error": {"message": f"bad key {KEY}"}}, "status 401"),
        (200, b"<html>", "no chat completion"),
        (200, {"choices": []}, "no chat completion"),
        (200, {"error": "secret words"}, "no chat completion"),
        (200, {"choices": [{"message": {"tool_calls": [{"type": "function"}]}}]}, "no chat"),
    ],
)
async def test_what_is_no_answer_is_asked_once_and_is_one_line(
    status: int, answer: Any, said: str
) -> None:
    """The client's own retries are off: by default it would ask three times at 429 and 500."""
    with (
        chat_server(*[(status, answer)] * 3) as server,
        pytest.raises(ModelUnavailable, match=said) as caught,
    ):
        await ask(provider("openai", server))
    assert len(server.asked) == 1
    assert KEY not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None


async def test_a_provider_that_is_not_there_is_one_line() -> None:
    with chat_server() as server:
        pass
    with pytest.raises(ModelUnavailable, match="OpenAI cannot be reached"):
        await ask(provider("openai", server))


async def test_a_run_goes_on_after_the_model_was_away_and_makes_the_effect_once(
    desk: Desk, broker: AsyncBroker
) -> None:
    answers = [
        (200, completion("", CHARGE)),
        (503, {"error": {"message": "away"}}),
        (200, completion("It is charged.")),
    ]
    with chat_server(*answers) as server:

        async def live() -> Any:
            async with aclosing(provider("grok", server)) as model:
                with desk.journal() as journal:
                    return await Agent(broker, model, journal, desk.tools).run()

        with pytest.raises(ModelUnavailable, match="Grok answered with status 503"):
            await live()
        report = await live()
    assert report.text == "It is charged."
    last = server.asked[-1].body["messages"]
    assert [message["role"] for message in last] == ["system", "user", "assistant", "tool"]
    assert last[3]["tool_call_id"] == "call_7"
    assert json.loads(last[3]["content"])["happened"] == "yes"
    assert last == server.asked[1].body["messages"], "a restart tells the model the same"
    assert desk.ledger("charge_card").effects == 1


@pytest.mark.parametrize(
    ("name", "model", "environment", "said"),
    [
        ("openai", "m", {}, "OpenAI needs a key in OPENAI_API_KEY"),
        ("grok", "m", {"OPENAI_API_KEY": KEY}, "Grok needs a key in XAI_API_KEY"),
        ("grok", None, {"XAI_API_KEY": KEY}, "needs the name of a model: --model, or XAI_MODEL"),
        ("other", "m", {}, "there is no provider 'other'; there are scripted, openai, grok"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    name: str, model: str | None, environment: dict[str, str], said: str
) -> None:
    with pytest.raises(ProviderNotConfigured) as caught:
        access_from(name, model, environment)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_extra_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda _: None)
    with pytest.raises(ProviderNotConfigured, match=r"pip install 'effect-broker\[agent\]'"):
        access_from("openai", "m", {"OPENAI_API_KEY": KEY})
