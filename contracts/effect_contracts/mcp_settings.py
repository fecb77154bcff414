"""The settings of the adapter for tools of MCP servers: where the server is, what its answers say.

This file owns the shape of `adapter: {kind: mcp, …}` in a contract document; the adapter only
carries it out. The specification of MCP says of no answer that it proves anything: a tool that
raises, a tool that is not there and arguments that are refused may all come back as a result with
`isError`, and every hint (`idempotentHint` and the like) is the server's own claim. So all of it is
**ambiguous** until a rule of the contract says otherwise.

A rule is a JMESPath expression that has to be exactly true over what came back:

    isError            of the result
    content            the blocks of the result, as on the wire
    structuredContent  of the result, if it has one
    text               all text blocks, joined by line feeds
    json               the value of `text`, where it is strict JSON
    error              {code, message, data} of a JSON-RPC error that the server itself has sent
    http_status        of the answer, where the server is reached by HTTP

Where rules of several kinds match, the first of `MCP_ANSWER_ORDER` decides; an answer that is both
a success and a refusal is ambiguous.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, JsonValue

from effect_contracts.expressions import (
    Code,
    Expression,
    HeaderName,
    Pointer,
    UrlTemplate,
    url_variables,
)
from effect_contracts.http_settings import (
    RESPONSE_BYTES_MAX_DEFAULT,
    SecretHeader,
    StaticHeader,
)
from effect_contracts.section import Section

# The member of `_meta` that carries the downstream key. Names in `_meta` have a prefix that belongs
# to whoever defines them (specification, "General fields").
META_KEY: Final = "dev.effect-broker/idempotency-key"

MCP_ANSWER_ORDER: Final = (
    "key_conflict",
    "in_progress",
    "already_exists",
    "retryable",
    "rejected",
    "success",
)


def _fixed_url(url: str) -> str:
    if url_variables(url):
        raise ValueError("the URL of an MCP server is fixed: no {…} in it")
    return url


FixedUrl = Annotated[UrlTemplate, AfterValidator(_fixed_url)]
ProgramName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
# The specification permits letters, digits and "_-./" up to 128; servers in the field use more.
ToolName = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$")]


class McpProgram(Section):
    """A server that the worker starts for each attempt and speaks to over stdin and stdout.

    Attributes:
        program: the name of an entry of the worker's own list of programs
            (EFFECT_BROKER_MCP_PROGRAMS). A document names no command: whoever may write contracts
            may not run programs on the workers.
    """

    kind: Literal["program"]
    program: ProgramName


class McpUrl(Section):
    """A server that is reached by streamable HTTP.

    Attributes:
        headers: sent with every request; secrets by reference.
        allow_plaintext: permit http:// to a host that is not this machine.
    """

    kind: Literal["http"]
    url: FixedUrl
    headers: Annotated[dict[HeaderName, StaticHeader | SecretHeader], Field(max_length=64)] = Field(
        default_factory=dict
    )
    allow_plaintext: bool = False


McpServer = Annotated[McpProgram | McpUrl, Field(discriminator="kind")]


class KeyInMeta(Section):
    """The downstream key is the member `name` of the call's `_meta`."""

    location: Literal["meta"] = Field(alias="in")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,254}$")] = META_KEY


class KeyInArgument(Section):
    """The downstream key is the top-level argument `name`, after `prefix`."""

    location: Literal["argument"] = Field(alias="in")
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,127}$")]
    prefix: Annotated[str, Field(max_length=64, pattern=r"^[\x20-\x7e]*$")] = ""


McpKey = Annotated[KeyInMeta | KeyInArgument, Field(discriminator="location")]


class McpRule(Section):
    """What an answer is, if `match` is true over it; see the head of this file.

    Attributes:
        proves_no_commit: the author states that the server did nothing. Required of `rejected` and
            `retryable`.
    """

    match: Expression
    code: Code
    proves_no_commit: bool = False


McpRules = Annotated[tuple[McpRule, ...], Field(max_length=64)]


class McpAnswers(Section):
    """How answers are classified; what matches nothing is ambiguous.

    Attributes:
        success: what has to be true of an answer that means "done"; without it, a result that is
            no error.
        rejected: final, and proves that nothing was done.
        retryable: proves that nothing was done, and may be tried again.
        in_progress: the server is still at work on this key.
        key_conflict: the server knows the key with other arguments.
        already_exists: an object of this name exists; ours only if a probe says so.
    """

    success: Expression | None = None
    rejected: McpRules = ()
    retryable: McpRules = ()
    in_progress: McpRules = ()
    key_conflict: McpRules = ()
    already_exists: McpRules = ()


class McpExtraction(Section):
    """What is taken from an answer, besides the result, which is kept as it came.

    Attributes:
        external_id: the server's id of the object (a string or an integer).
        receipt_fields: small values for the receipt, by name.
    """

    external_id: Expression | None = None
    receipt_fields: Annotated[dict[Code, Expression], Field(max_length=32)] = Field(
        default_factory=dict
    )


class McpProbe(Section):
    """A read-only tool of the same server that shows whether the effect exists.

    One item with our key whose `agree` fields agree: committed. More than one, or a field that
    disagrees: mismatch. A result without our key: not committed, if `complete` is true of it. All
    else, every error included: unknown.

    Attributes:
        tool: the author states that it changes nothing; the server's hint is not asked.
        arguments: a template (see `effect_contracts.body_template`) over the effect's arguments
            and the downstream key.
        items: JMESPath over the answer, to a list of items or to one.
        key_path, key_prefix: an item is ours if the value at the path is prefix and key, exactly.
        agree: argument pointer to JMESPath in the item: values that must be equal. An argument
            that is absent agrees with an absent or null value.
        complete: what has to be true of an answer whose items are all there are. Without it a
            look-up can find, and never deny.
        extraction: what is taken from the item that is ours.
    """

    tool: ToolName
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    items: Expression
    key_path: Expression
    key_prefix: Annotated[str, Field(max_length=64, pattern=r"^[\x20-\x7e]*$")] = ""
    agree: Annotated[dict[Pointer, Expression], Field(max_length=32)] = Field(default_factory=dict)
    complete: Expression | None = None
    extraction: McpExtraction = McpExtraction()


class McpSettings(Section):
    """A tool of an MCP server; see the head of this file.

    Attributes:
        tool: as the server lists it.
        protocol: `auto` asks the server for the protocol of 2026-07-28 and falls back to the
            handshake; `legacy` begins with the handshake, for servers that cannot be asked.
        lists_tools_first: read the server's list of tools before the call. A tool whose schema
            puts arguments into headers (`x-mcp-header`) needs that.
        key: where the downstream key goes.
        extraction: JMESPath over the answer, as the rules are.
        response_bytes_max: a longer answer is not kept, and cut where it can be.
    """

    kind: Literal["mcp"]
    server: McpServer
    tool: ToolName
    protocol: Literal["auto", "legacy"] = "auto"
    lists_tools_first: bool = False
    key: McpKey = KeyInMeta.model_validate({"in": "meta"})
    answers: McpAnswers = McpAnswers()
    extraction: McpExtraction = McpExtraction()
    probe: McpProbe | None = None
    response_bytes_max: Annotated[int, Field(ge=1024, le=16_777_216)] = RESPONSE_BYTES_MAX_DEFAULT


__all__ = [
    "MCP_ANSWER_ORDER",
    "META_KEY",
    "KeyInArgument",
    "KeyInMeta",
    "McpAnswers",
    "McpExtraction",
    "McpKey",
    "McpProbe",
    "McpProgram",
    "McpRule",
    "McpServer",
    "McpSettings",
    "McpUrl",
]
