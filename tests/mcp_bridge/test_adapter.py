"""The adapter for tools of MCP servers, at a server that counts what reaches it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from effect_adapters.base import (
    Answer,
    Budget,
    DispatchCall,
    RenderError,
    SecretResolver,
    SecretUnavailable,
)
from effect_adapters.mcp import McpAdapter
from effect_adapters.mcp.programs import Program, read_programs, runnable
from effect_broker.clock import SystemClock
from effect_broker.conformance import Judgement, Trial, drifted_arguments, examine
from effect_broker.proof.broker import wait_until
from effect_contracts.canonical import JsonValue
from effect_contracts.document import ContractDocument
from effect_contracts.errors import ContractInvalid
from effect_contracts.facts import Outcome
from mcp_bridge.modern import IN_HEADER, Modern, served
from mcp_bridge.notes import Notes, notes_contract
from mcp_bridge.notes_server import META_KEY

ARGUMENTS = {"title": "Milk"}


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch, programs: Path) -> None:
    monkeypatch.setenv("EFFECT_BROKER_MCP_PROGRAMS", str(programs))


def secret(reference: str) -> str:
    """One secret is there."""
    if reference != "env:EFFECT_BROKER_SECRET_NOTES":
        raise SecretUnavailable(reference)
    return "the secret"


def contract(safety: str = "unsafe", server: str = "", **changes: str) -> ContractDocument:
    return ContractDocument.parse_yaml(notes_contract(safety, server, **changes))


@pytest.fixture(params=["program", "http"])
def server(request: pytest.FixtureRequest, notes: Notes) -> Iterator[str]:
    """The `server` section of a contract, for a server that runs."""
    if request.param == "program":
        yield ""
    else:
        with notes.over_http() as url:
            yield f'{{kind: http, url: "{url}"}}'


async def dispatch(
    document: ContractDocument,
    *,
    key: str = "key-1",
    seconds: float = 5.0,
    reach: Callable[[str], None] = lambda _: None,
    read: Callable[[], float] = time.monotonic,
    secrets: SecretResolver = secret,
) -> Answer:
    adapter = McpAdapter(secrets)
    return await adapter.dispatch(
        DispatchCall(
            effect_id=uuid4(),
            tenant_id=uuid4(),
            attempt_id=uuid4(),
            ordinal=1,
            downstream_key=key,
            wire=adapter.render(document, cast(JsonValue, ARGUMENTS), key),
            document=document,
            budget=Budget(read() + seconds, read),
            reach=reach,
        )
    )


# What reaches the server -----------------------------------------------------------------------


async def test_a_call_arrives_once_with_its_key_and_its_result_is_kept_whole(
    notes: Notes, server: str
) -> None:
    reached: list[str] = []
    answer = await dispatch(contract(server=server), reach=reached.append)
    assert (answer.outcome, answer.external_id) == (Outcome.COMMITTED, "note-1")
    assert answer.result == {
        "content": [{"type": "text", "text": '{"id": "note-1", "title": "Milk"}'}],
        "structuredContent": {"id": "note-1", "title": "Milk"},
        "isError": False,
        "_meta": {"notes.example/shelf": 7},
    }
    [call] = notes.calls
    assert (call["tool"], call["arguments"]) == ("create_note", ARGUMENTS)
    assert call["meta"][META_KEY] == "key-1"
    assert reached == ["before_socket_write", "after_last_gate"]


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        ("error", {"tool_error"}),
        ("error_after", {"tool_error"}),
        ("refuse", {"protocol_error"}),
        ("die_before", {"program_ended", "closed_without_answer"}),
        ("die_after", {"program_ended", "closed_without_answer"}),
    ],
)
async def test_whatever_the_contract_does_not_read_is_ambiguous(
    notes: Notes, server: str, behaviour: str, code: set[str]
) -> None:
    notes.script(behaviour)
    answer = await dispatch(contract(server=server))
    assert (answer.outcome, answer.bytes_may_have_left) == (Outcome.AMBIGUOUS, True)
    assert answer.code in code
    assert len(notes.calls) == 1


async def test_a_server_that_hangs_is_left_when_the_time_is_over(notes: Notes, server: str) -> None:
    notes.script("hang_after")
    began = time.monotonic()
    answer = await dispatch(contract(server=server), seconds=1.0)
    assert (answer.outcome, answer.code) == (Outcome.AMBIGUOUS, "deadline")
    assert time.monotonic() - began < 20
    assert len(notes.calls) == 1


@pytest.mark.parametrize("how", ["deadline", "cancelled"])
async def test_no_program_outlives_its_call(notes: Notes, how: str) -> None:
    notes.script("hang_before")
    calling = asyncio.create_task(dispatch(contract(), seconds=1.0 if how == "deadline" else 60.0))
    await asyncio.to_thread(wait_until, lambda: notes.calls or None, "the call arrived")
    pid = notes.calls[0]["pid"]
    assert running(pid)
    if how == "cancelled":
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    else:
        await calling
    await asyncio.to_thread(wait_until, lambda: not running(pid) or None, "the program is gone")
    assert notes.effects == []


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_result_that_is_too_large_is_a_success_without_a_result(
    notes: Notes, server: str
) -> None:
    notes.script("large")
    answer = await dispatch(contract(server=server))
    assert (answer.outcome, answer.external_id) == (Outcome.COMMITTED, "note-1")
    assert answer.result is None


async def test_nothing_leaves_when_the_time_is_over_at_the_last_gate(
    notes: Notes, server: str
) -> None:
    late = [0.0]

    def pause(_: str) -> None:
        late[0] = 60.0  # as a process that was stopped there

    answer = await dispatch(
        contract(server=server), reach=pause, read=lambda: time.monotonic() + late[0]
    )
    assert (answer.outcome, answer.code) == (Outcome.NOT_SENT, "budget_spent")
    assert not answer.bytes_may_have_left
    assert notes.calls == []


async def test_a_redirect_carries_no_second_call(notes: Notes) -> None:
    with notes.over_http() as url:
        notes.answer_calls_with(307, "/mcp")
        answer = await dispatch(contract(server=f'{{kind: http, url: "{url}"}}'))
    assert (answer.outcome, answer.code, answer.status) == (
        Outcome.AMBIGUOUS,
        "call_repeated",
        307,
    )
    assert len(notes.calls) == 1


async def test_a_question_back_is_not_answered_by_a_second_call() -> None:
    modern = Modern(asks_back=True)
    async with served(modern.server().streamable_http_app()) as origin:
        document = contract(server=f'{{kind: http, url: "{origin}/mcp"}}')
        asked = await dispatch(document)
        modern.asks_back = False
        plain = await dispatch(document, key="key-2")
    assert (asked.outcome, asked.code) == (Outcome.AMBIGUOUS, "input_required")
    assert (plain.outcome, plain.external_id) == (Outcome.COMMITTED, "7")
    assert modern.protocols == {"2026-07-28"}
    metas: list[Any] = [call.meta for call in modern.calls]
    assert [meta[META_KEY] for meta in metas] == ["key-1", "key-2"]


async def test_a_refused_header_is_answered_by_no_second_call() -> None:
    """The SDK's own call would list the tools again, and then send again."""
    modern = Modern(tools=["create_note"], schema=IN_HEADER)
    async with served(modern.counted()) as origin:
        where = f'{{kind: http, url: "{origin}/mcp"}}'
        refused = await dispatch(contract(server=where))
        rule = "rejected: [{match: 'error.code == `-32020`', code: header, proves_no_commit: true}]"
        read = await dispatch(contract(server=where, answers=f"  answers: {{{rule}}}\n"))
    assert (refused.outcome, refused.code) == (Outcome.AMBIGUOUS, "protocol_error")
    assert refused.status == 400
    assert (read.outcome, read.code) == (Outcome.REJECTED, "header")
    methods = [method for method, _ in modern.on_the_wire]
    assert methods == ["server/discover", "tools/call"] * 2
    assert modern.calls == []


async def test_an_argument_that_belongs_into_a_header_is_there_once_the_tools_were_listed() -> None:
    modern = Modern(tools=["create_note"], schema=IN_HEADER)
    async with served(modern.counted()) as origin:
        where = f'{{kind: http, url: "{origin}/mcp"}}'
        text = notes_contract("unsafe", where)
        listing = text.replace("  kind: mcp\n", "  kind: mcp\n  lists_tools_first: true\n")
        answer = await dispatch(ContractDocument.parse_yaml(listing))
    assert (answer.outcome, answer.external_id) == (Outcome.COMMITTED, "7")
    methods = [method for method, _ in modern.on_the_wire]
    assert methods == ["server/discover", "tools/list", "tools/call"]
    assert modern.on_the_wire[-1][1]["mcp-param-shelf"] == ARGUMENTS["title"]
    assert [call.arguments for call in modern.calls] == [ARGUMENTS]


# What is proved not to have left ---------------------------------------------------------------


@pytest.fixture
def broken_programs(programs: Path) -> None:
    """Programs that never come to a call."""
    programs.write_text(
        "no-file: {command: /no/such/file}\n"
        "no-server: {command: 'true'}\n"
        "no-secret: {command: 'true', env: {A: {secret: 'env:NOT_THERE'}}}\n"
    )


@pytest.mark.parametrize(
    ("server", "code"),
    [
        ("{kind: http, url: 'http://127.0.0.1:9/mcp'}", "connect_failed"),
        ("{kind: program, program: unheard-of}", "program_not_allowed"),
        ("{kind: program, program: no-file}", "program_not_started"),
        ("{kind: program, program: no-secret}", "secret_unavailable"),
        ("{kind: program, program: no-server}", "program_ended"),
        (
            "{kind: http, url: 'http://127.0.0.1:9/', headers: {A: {secret: 'env:NOT_THERE'}}}",
            "secret_unavailable",
        ),
    ],
)
async def test_what_stops_before_the_call_is_not_sent(
    broken_programs: None, server: str, code: str
) -> None:
    answer = await dispatch(contract(server=server))
    assert (answer.outcome, answer.code) == (Outcome.NOT_SENT, code)
    assert not answer.bytes_may_have_left


@pytest.mark.parametrize(
    "server",
    [
        "{kind: http, url: 'http://127.0.0.1:9/', headers: {A: {secret: 'env:ANY'}}}",
        "{kind: program, program: no-secret}",
    ],
)
async def test_whatever_a_resolver_meets_is_a_secret_that_cannot_be_had(
    broken_programs: None, server: str
) -> None:
    def broken(_reference: str) -> str:
        raise RuntimeError("the vault said: hunter2")

    answer = await dispatch(contract(server=server), secrets=broken)
    assert (answer.outcome, answer.code) == (Outcome.NOT_SENT, "secret_unavailable")


@pytest.mark.parametrize(
    ("content", "code"), [(None, "programs_missing"), ("notes: 7", "programs_invalid")]
)
async def test_a_list_of_programs_that_cannot_be_read_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, code: str
) -> None:
    path = tmp_path / "list.yaml"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("EFFECT_BROKER_MCP_PROGRAMS", str(path))
    answer = await dispatch(contract())
    assert (answer.outcome, answer.code) == (Outcome.NOT_SENT, code)


def test_a_program_gets_the_listed_variables_and_none_of_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EFFECT_BROKER_WORKER_DATABASE_URL", "postgresql://secret")
    value = {"secret": "env:EFFECT_BROKER_SECRET_NOTES", "prefix": "Bearer "}
    program = Program.model_validate({"command": "x", "env": {"TOKEN": value, "REGION": "eu"}})
    made = runnable(program, secret)
    assert (made.env["TOKEN"], made.env["REGION"]) == ("Bearer the secret", "eu")
    assert "EFFECT_BROKER_WORKER_DATABASE_URL" not in made.env
    assert "the secret" not in repr(made)


def test_a_misspelt_member_of_the_list_is_told_with_its_place() -> None:
    with pytest.raises(ContractInvalid) as refused:
        read_programs("notes: {command: x, arguments: [a]}")
    assert refused.value.field == "/notes/arguments"


# What the contract reads -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "rule", "outcome"),
    [
        ("error", "rejected: [{match: \"contains(text, 'closed')\", CODE}]", Outcome.REJECTED),
        ("refuse", "retryable: [{match: 'error.code == `-32602`', CODE}]", Outcome.RETRYABLE),
        ("ok", "rejected: [{match: \"text != ''\", CODE}]", Outcome.AMBIGUOUS),
        ("ok", "success: \"structuredContent.title == 'Tea'\"", Outcome.AMBIGUOUS),
        # The library says this of itself when a server has gone; it is no word of the server.
        ("die_after", "rejected: [{match: 'error.code == `-32000`', CODE}]", Outcome.AMBIGUOUS),
    ],
)
async def test_an_answer_is_what_the_contract_makes_of_it(
    notes: Notes, behaviour: str, rule: str, outcome: Outcome
) -> None:
    notes.script(behaviour)
    told = rule.replace("CODE", "code: told, proves_no_commit: true")
    answer = await dispatch(contract(answers=f"  answers:\n    {told}\n"))
    assert answer.outcome is outcome


async def test_a_bare_status_is_read_by_the_contract_alone(notes: Notes) -> None:
    rule = "retryable: [{match: 'http_status == `503`', code: busy, proves_no_commit: true}]"
    with notes.over_http() as url:
        notes.answer_calls_with(503)
        where = f'{{kind: http, url: "{url}"}}'
        silent = await dispatch(contract(server=where))
        spoken = await dispatch(contract(server=where, answers=f"  answers: {{{rule}}}\n"))
    assert (silent.outcome, silent.code) == (Outcome.AMBIGUOUS, "unmatched_status_503")
    assert (spoken.outcome, spoken.code) == (Outcome.RETRYABLE, "busy")


# The request -----------------------------------------------------------------------------------


def test_the_call_is_rendered_the_same_every_time_and_without_secrets() -> None:
    adapter, document = McpAdapter(secret), contract()
    wire = adapter.render(document, {"title": "b", "text": "a"}, "k")
    assert wire == adapter.render(document, {"text": "a", "title": "b"}, "k")
    expected = (
        '{"arguments":{"text":"a","title":"b"},"meta":{"' + META_KEY + '":"k"},'
        '"tool":"create_note"}'
    )
    assert wire.decode() == expected


def test_a_key_in_the_arguments_is_never_the_callers() -> None:
    text = notes_contract("unsafe").replace(
        "  tool: create_note\n", "  tool: create_note\n  key: {in: argument, name: request_id}\n"
    )
    document = ContractDocument.parse_yaml(text.replace("additionalProperties: false", ""))
    adapter = McpAdapter(secret)
    assert b'"arguments":{"request_id":"k","title":"a"},"meta":{}' in adapter.render(
        document, {"title": "a"}, "k"
    )
    with pytest.raises(RenderError, match="key_argument_taken"):
        adapter.render(document, {"title": "a", "request_id": "mine"}, "k")


def test_the_identity_is_the_server_and_the_account() -> None:
    adapter = McpAdapter(secret)
    assert adapter.identity(contract()) == "mcp:notes-plain#notes-test"
    over_http = contract(server="{kind: http, url: 'https://notes.example/mcp?region=eu'}")
    assert adapter.identity(over_http) == "https://notes.example/mcp#notes-test"


# The conformance of a server -------------------------------------------------------------------

CONFLICT = """  answers:
    key_conflict: [{match: "contains(text, 'another note')", code: another_note}]
"""


async def judged(document: ContractDocument) -> dict[str, Judgement]:
    adapter, arguments = McpAdapter(secret), cast(JsonValue, ARGUMENTS)
    drifted = drifted_arguments(document, adapter, arguments)
    trial = Trial(document, adapter, arguments, drifted, SystemClock(), uuid4)
    return {result.check: result.judgement for result in await examine(trial)}


async def test_a_server_that_keeps_its_keys_conforms(notes: Notes) -> None:
    found = await judged(contract("idempotent", answers=CONFLICT))
    assert set(found.values()) == {Judgement.KEPT}
    assert {"same_key_same_effect", "drift_is_refused"} <= found.keys()


async def test_a_server_that_only_claims_to_be_idempotent_is_found_out(notes: Notes) -> None:
    where = "{kind: program, program: notes-plain}"  # its hint says idempotentHint: true
    found = await judged(contract("idempotent", where, answers=CONFLICT))
    assert found["same_key_same_effect"] is Judgement.BROKEN


async def test_a_look_up_by_a_read_only_tool_conforms(notes: Notes) -> None:
    found = await judged(contract("reconcilable"))
    assert set(found.values()) == {Judgement.KEPT}
    assert {"found_once_by_key", "absence_is_shown"} <= found.keys()
