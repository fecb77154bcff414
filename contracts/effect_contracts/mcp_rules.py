"""The rules of a contract whose adapter is `mcp`: what is safe to send, and what proves what.

Owns the reasons to refuse well-formed settings of the adapter for MCP servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from effect_contracts.body_template import template_pointers, template_problem
from effect_contracts.errors import ContractProblem
from effect_contracts.expressions import is_loopback, origin_of, pointer_tokens, schema_reaches
from effect_contracts.facts import SafetyClass
from effect_contracts.mcp_settings import KeyInArgument, McpSettings, McpUrl

if TYPE_CHECKING:
    from effect_contracts.document import ContractDocument

Problems = Iterator[ContractProblem]

# The transport writes these itself.
_OWN_HEADERS: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "last-event-id",
        "mcp-method",
        "mcp-name",
        "mcp-protocol-version",
        "mcp-session-id",
        "transfer-encoding",
        "upgrade",
    }
)


def broken_mcp_rules(document: ContractDocument, mcp: McpSettings) -> list[ContractProblem]:
    """Return every broken rule, in the order of the settings."""
    return [problem for rule in MCP_RULES for problem in rule(document, mcp)]


def _server_is_private(_: ContractDocument, mcp: McpSettings) -> Problems:
    server = mcp.server
    if not isinstance(server, McpUrl):
        return
    parts = urlsplit(origin_of(server.url))
    if (
        parts.scheme == "http"
        and not server.allow_plaintext
        and not is_loopback(parts.hostname or "")
    ):
        yield ContractProblem(
            "/adapter/server/url",
            "http:// sends key and arguments in the clear: use https://, or state "
            "allow_plaintext: true (http:// to this machine needs no statement)",
        )
    seen: set[str] = set()
    for name, value in server.headers.items():
        place, lower = f"/adapter/server/headers/{name}", name.lower()
        if lower in seen:
            yield ContractProblem(place, "this header is there twice")
        seen.add(lower)
        if lower in _OWN_HEADERS:
            yield ContractProblem(place, "the transport writes this header itself")
        if lower == "authorization" and isinstance(value, str):
            yield ContractProblem(
                place, "credentials are no part of a document: write {secret: env:NAME}"
            )


def _key_is_not_the_callers(document: ContractDocument, mcp: McpSettings) -> Problems:
    declared = document.arguments.get("properties")
    if (
        isinstance(mcp.key, KeyInArgument)
        and isinstance(declared, dict)
        and mcp.key.name in declared
    ):
        yield ContractProblem(
            "/adapter/key/name",
            "the arguments declare this member themselves, and callers do not choose the key: "
            "remove it from the schema",
        )


def _refusals_prove_what_they_say(document: ContractDocument, mcp: McpSettings) -> Problems:
    for kind in ("rejected", "retryable"):
        for index, rule in enumerate(getattr(mcp.answers, kind)):
            if not rule.proves_no_commit:
                yield ContractProblem(
                    f"/adapter/answers/{kind}/{index}/proves_no_commit",
                    "a tool that answers with an error may have done its work: state "
                    "proves_no_commit: true if the server promises that it has not, or remove "
                    "the rule (the answer is then ambiguous, and handled by the safety class)",
                )
    if mcp.answers.already_exists and document.safety is SafetyClass.UNSAFE:
        yield ContractProblem(
            "/adapter/answers/already_exists",
            "an unsafe contract cannot find out whose object it is; list the answer as rejected "
            "only if it proves that this call did nothing",
        )


def _probe_finds_by_key(document: ContractDocument, mcp: McpSettings) -> Problems:
    probe = mcp.probe
    if probe is None:
        return
    if probe.tool == mcp.tool:
        yield ContractProblem(
            "/adapter/probe/tool", "a look-up changes nothing: name another, read-only tool"
        )
    problem = template_problem(probe.arguments)
    if problem is not None:
        yield ContractProblem("/adapter/probe/arguments", problem)
        return
    for pointer in template_pointers(probe.arguments):
        if not schema_reaches(document.arguments, pointer_tokens(pointer)):
            yield ContractProblem(
                "/adapter/probe/arguments", f"$arg {pointer} is no argument of this contract"
            )
    if not probe.agree:
        yield ContractProblem(
            "/adapter/probe/agree",
            "name at least one argument and where the item has it, so that an object under our "
            "key with other content is not taken for ours",
        )
    for pointer in probe.agree:
        if not schema_reaches(document.arguments, pointer_tokens(pointer)):
            yield ContractProblem(
                "/adapter/probe/agree", f"{pointer} is no argument of this contract"
            )
    if document.safety is SafetyClass.RECONCILABLE and probe.complete is None:
        yield ContractProblem(
            "/adapter/probe/complete",
            "a reconcilable contract can be denied too: say what is true of a result that shows "
            "all there is, for example 'isError == `false`' where the tool lists everything",
        )


MCP_RULES: Final[tuple[Callable[[ContractDocument, McpSettings], Problems], ...]] = (
    _server_is_private,
    _key_is_not_the_callers,
    _refusals_prove_what_they_say,
    _probe_finds_by_key,
)
