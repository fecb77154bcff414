"""Pydantic AI and the OpenAI Agents SDK: a model that is asked again makes another call."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks.running import Sightings, ran


@pytest.fixture(scope="module")
def pydantic_ai(python: Path) -> Sightings:
    return ran(python, "pydantic_ai")


@pytest.fixture(scope="module")
def openai_agents(python: Path) -> Sightings:
    return ran(python, "openai_agents")


def test_a_model_that_is_asked_once_more_makes_another_call_in_the_same_run(
    pydantic_ai: Sightings, openai_agents: Sightings
) -> None:
    tries = pydantic_ai.of("model_retry")
    assert tries.changing() == {"tool_call_id", "retry", "call"}
    assert tries.stable() >= {"run_id", "conversation_id", "request"}
    tries = openai_agents.of("failed_tool")
    assert tries.changing() == {"tool_call_id", "call"}
    assert "request" in tries.stable()


def test_a_second_run_of_the_same_request_shares_nothing_but_the_request(
    pydantic_ai: Sightings, openai_agents: Sightings
) -> None:
    runs = pydantic_ai.of("second_run")
    assert runs.changing() == {"run_id", "conversation_id", "tool_call_id", "call"}
    assert {one.keys["request"] for one in runs} == {"request:request-7:charge:42"}
    runs = openai_agents.of("second_run")
    assert runs.changing() == {"tool_call_id", "call"}
    assert {one.keys["request"] for one in runs} == {"request:request-7:charge:42"}


def test_a_stored_call_keeps_its_id_however_often_it_is_taken_up(
    pydantic_ai: Sightings, openai_agents: Sightings
) -> None:
    runs = pydantic_ai.of("stored_call")
    assert runs.changing() == {"run_id"}
    assert runs.stable() >= {"tool_call_id", "call", "request"}
    first = pydantic_ai.of("second_run")[0]
    assert runs[0].ids["tool_call_id"] == first.ids["tool_call_id"]
    runs = openai_agents.of("stored_state")
    assert runs.stable() >= {"tool_call_id", "call", "request"}
    assert runs[0].keys["call"] == f"stored-call:state-7:{runs[0].ids['tool_call_id']}"


def test_ids_of_runs_and_calls_are_refused_as_parts(
    pydantic_ai: Sightings, openai_agents: Sightings
) -> None:
    assert {one.keys["with_call_id"] for one in (*pydantic_ai, *openai_agents)} == {"?changes"}
    assert {one.keys["of_the_run"] for one in pydantic_ai} == {"?changes"}
