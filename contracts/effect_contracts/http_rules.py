"""The rules of a contract whose adapter is `http`: what is safe to send, and what proves what.

Owns the reasons to refuse well-formed HTTP settings. They keep three promises: arguments never
choose a host, a secret is sent to the contract's own origin only, and no answer counts as a proof
that nothing was done unless it can be one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from effect_contracts.body_template import (
    header_variables,
    template_has_key,
    template_pointers,
    template_problem,
)
from effect_contracts.errors import ContractProblem
from effect_contracts.expressions import (
    KEY_VARIABLE,
    OPERATION_VARIABLE,
    is_loopback,
    origin_of,
    pointer_tokens,
    schema_reaches,
    url_variables,
)
from effect_contracts.facts import SafetyClass
from effect_contracts.http_settings import (
    AnswerMatch,
    BasicAuth,
    Body,
    DigestKey,
    EtagKey,
    FormBody,
    HttpSettings,
    JsonBody,
    KeyInBody,
    KeyInHeader,
    KeyInPath,
    KeyInQuery,
    NoBody,
    NoPaging,
    ProbeRequest,
    Rule,
    TemplateHeader,
    TextBody,
    TextKey,
)

if TYPE_CHECKING:
    from effect_contracts.document import ContractDocument

Problems = Iterator[ContractProblem]

# The adapter writes these itself: they follow from the body, the connection or the URL.
_OWN_HEADERS: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# 404 and 410 say "not here" (RFC 9110, sections 15.5.5 and 15.5.11); no other error does.
_ABSENT_STATUSES: Final = frozenset({404, 410})
_SECRET_TEXT: Final = re.compile(r"(env:[A-Za-z_][A-Za-z0-9_]*|file:/.*)")


def broken_http_rules(document: ContractDocument, http: HttpSettings) -> list[ContractProblem]:
    """Return every broken rule, in the order of the settings."""
    return [problem for rule in HTTP_RULES for problem in rule(document, http)]


# URLs -------------------------------------------------------------------------------------------


def _urls(http: HttpSettings) -> Iterator[tuple[str, str]]:
    yield "/adapter/url", http.url
    if http.answers.accepted is not None and http.answers.accepted.poll_url is not None:
        yield "/adapter/answers/accepted/poll_url", http.answers.accepted.poll_url
    if http.probe is not None:
        yield "/adapter/probe/url", http.probe.url


def _urls_are_private_and_of_one_origin(_: ContractDocument, http: HttpSettings) -> Problems:
    for place, url in _urls(http):
        parts = urlsplit(origin_of(url))
        if (
            parts.scheme == "http"
            and not http.allow_plaintext
            and not is_loopback(parts.hostname or "")
        ):
            yield ContractProblem(
                place,
                "http:// sends key and arguments in the clear: use https://, or state "
                "allow_plaintext: true (http:// to this machine needs no statement)",
            )
        if origin_of(url) != origin_of(http.url):
            yield ContractProblem(
                place,
                "scheme, host and port are those of adapter.url, since the same credentials are "
                "sent; another origin is another contract",
            )
        if re.search(r"[=/](env|file):", url):
            yield ContractProblem(
                place, "a secret in a URL ends in logs: put it in a header or in auth"
            )


def _variables_are_arguments(document: ContractDocument, http: HttpSettings) -> Problems:
    for place, url in _urls(http):
        polls = place.endswith("/poll_url")
        variables = url_variables(url)
        if polls and OPERATION_VARIABLE not in variables:
            yield ContractProblem(place, "name the operation by {operation}, or leave poll_url out")
        yield from _unknown_variables(
            document, place, [v for v in variables if not (polls and v == OPERATION_VARIABLE)]
        )
    for place, headers in _header_sets(http):
        for name, value in headers.items():
            if isinstance(value, TemplateHeader):
                yield from _unknown_variables(
                    document, f"{place}/{name}", header_variables(value.template)
                )


def _unknown_variables(
    document: ContractDocument, place: str, variables: list[str] | tuple[str, ...]
) -> Problems:
    for variable in variables:
        if variable == KEY_VARIABLE:
            continue
        if not schema_reaches(document.arguments, tuple(variable.split("."))):
            yield ContractProblem(
                place, f"{{{variable}}} is no argument of this contract (nor {{key}})"
            )


# Headers ----------------------------------------------------------------------------------------


def _header_sets(http: HttpSettings) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "/adapter/headers", http.headers
    if http.probe is not None:
        yield "/adapter/probe/headers", http.probe.headers


def _headers_are_ours_to_set(_: ContractDocument, http: HttpSettings) -> Problems:
    for place, headers in _header_sets(http):
        seen: set[str] = set()
        for name, value in headers.items():
            lower = name.lower()
            if lower in seen:
                yield ContractProblem(f"{place}/{name}", "this header is there twice")
            seen.add(lower)
            if lower in _OWN_HEADERS:
                yield ContractProblem(
                    f"{place}/{name}",
                    "the adapter writes this header itself; the content type belongs to body",
                )
            if lower == "authorization" and http.auth is not None:
                yield ContractProblem(
                    f"{place}/{name}", "auth writes this header; keep one of the two"
                )
            if lower == "authorization" and isinstance(value, str):
                yield ContractProblem(
                    f"{place}/{name}",
                    "credentials are no part of a document: write {secret: env:NAME}",
                )
            if isinstance(value, TemplateHeader) and "{" in re.sub(
                r"\{[A-Za-z_][\w.]*\}", "", value.template
            ):
                yield ContractProblem(
                    f"{place}/{name}", "a header template has {name} expressions only"
                )
    key = http.key
    if isinstance(key, KeyInHeader):
        lower = key.name.lower()
        taken = {name.lower() for name in http.headers} | _OWN_HEADERS
        if http.auth is not None:
            taken.add("authorization")
        if lower in taken:
            yield ContractProblem(
                "/adapter/key/name", "this header has another value already; choose another"
            )
    if isinstance(http.auth, BasicAuth) and _SECRET_TEXT.fullmatch(http.auth.username):
        return
    if isinstance(http.auth, BasicAuth) and http.auth.password is None:
        yield ContractProblem(
            "/adapter/auth/username",
            "a user name without a password is a credential: write it as env:NAME or file:/path",
        )


# Body and key -----------------------------------------------------------------------------------


def _body_can_be_made(document: ContractDocument, http: HttpSettings) -> Problems:
    yield from body_problems(document, http.body)


def body_problems(document: ContractDocument, body: Body) -> Problems:
    """Yield what is wrong with the body at `/adapter/body`."""
    if isinstance(body, NoBody):
        return
    place = "/adapter/body/content"
    problem = template_problem(body.content)
    if problem is not None:
        yield ContractProblem(place, problem)
        return
    for pointer in template_pointers(body.content):
        if not schema_reaches(document.arguments, pointer_tokens(pointer)):
            yield ContractProblem(place, f"$arg {pointer} is no argument of this contract")
    if _has_secret_text(body.content):
        yield ContractProblem(
            place, "a secret reference here would be sent as text: secrets go into headers or auth"
        )
    leaf = isinstance(body.content, dict) and any(n.startswith("$") for n in body.content)
    is_object = isinstance(body.content, dict) and (not leaf or "$arg" in body.content)
    if isinstance(body, FormBody) and body.content is not None and not is_object:
        yield ContractProblem(place, "a form is an object: name its fields")
    if isinstance(body, TextBody) and not (isinstance(body.content, str) or leaf):
        yield ContractProblem(
            place, "a text body is a text, {$arg: …}, {$key: true} or {$concat: […]}"
        )


def _has_secret_text(template: Any) -> bool:
    if isinstance(template, str):
        return _SECRET_TEXT.fullmatch(template) is not None
    if isinstance(template, list):
        return any(_has_secret_text(part) for part in template)
    if isinstance(template, dict) and "$literal" not in template and "$arg" not in template:
        return any(_has_secret_text(part) for part in template.values())
    return False


def _key_has_a_place(document: ContractDocument, http: HttpSettings) -> Problems:
    key, body = http.key, http.body
    if key is None:
        if document.safety in {SafetyClass.IDEMPOTENT, SafetyClass.RECONCILABLE}:
            yield ContractProblem(
                "/adapter/key",
                f"a contract of class {document.safety} says where the downstream key goes: "
                "in: header, query, path or body",
            )
        return
    match key:
        case KeyInPath():
            path = re.split(r"\?|\{[?&]", http.url, maxsplit=1)[0]
            if KEY_VARIABLE not in url_variables(path):
                yield ContractProblem("/adapter/key", "write {key} into the path of adapter.url")
        case KeyInQuery(name=name):
            if re.search(rf"[?&]{re.escape(name)}=|\{{[?&][^}}]*\b{re.escape(name)}\b", http.url):
                yield ContractProblem(
                    "/adapter/key/name", "adapter.url has this query parameter already"
                )
        case KeyInBody(pointer=None):
            content = None if isinstance(body, NoBody) else body.content
            if template_problem(content) is None and not template_has_key(content):
                yield ContractProblem(
                    "/adapter/key",
                    "give the pointer of the body's member, or write {$key: true} into the body",
                )
        case KeyInBody(pointer=pointer):
            if not isinstance(body, JsonBody | FormBody):
                yield ContractProblem(
                    "/adapter/key/pointer", "only a json or form body has members to point at"
                )
            elif not pointer or not pointer_tokens(pointer)[0]:
                yield ContractProblem("/adapter/key/pointer", "the pointer names a member")
            elif body.content is None and _declares(document.arguments, pointer):
                yield ContractProblem(
                    "/adapter/key/pointer",
                    "the arguments declare this member themselves, and callers do not choose the "
                    "key: remove it from the schema",
                )
        case KeyInHeader():
            pass


def _declares(schema: dict[str, Any], pointer: str) -> bool:
    here: Any = schema
    for token in pointer_tokens(pointer):
        declared = here.get("properties") if isinstance(here, dict) else None
        if not isinstance(declared, dict) or token not in declared:
            return False
        here = declared[token]
    return True


# Answers ----------------------------------------------------------------------------------------


def _rules_prove_what_they_say(document: ContractDocument, http: HttpSettings) -> Problems:
    answers = http.answers
    if not answers.success and answers.accepted is None:
        yield ContractProblem(
            "/adapter/answers/success", "say which answers mean that the target did it"
        )
    for index, match in enumerate(answers.success):
        yield from _only_statuses(f"/adapter/answers/success/{index}", match, (2, 3))
    if answers.accepted is not None:
        yield from _only_statuses("/adapter/answers/accepted", answers.accepted, (2,))
    for kind in ("rejected", "retryable", "already_exists"):
        for index, rule in enumerate(getattr(answers, kind)):
            place = f"/adapter/answers/{kind}/{index}"
            if kind == "retryable" and not rule.proves_no_commit:
                yield ContractProblem(
                    f"{place}/proves_no_commit",
                    "a retryable answer proves that nothing was done: state "
                    "proves_no_commit: true if the target says so, or remove the rule (the "
                    "answer is then ambiguous, and handled by the safety class)",
                )
            yield from _doubtful_statuses(document.safety, place, rule)
    if answers.already_exists and document.safety is SafetyClass.UNSAFE:
        yield ContractProblem(
            "/adapter/answers/already_exists",
            "an unsafe contract cannot find out whose object it is; list the answer as rejected "
            "only if it proves that this request did nothing",
        )


def _only_statuses(place: str, match: AnswerMatch, hundreds: tuple[int, ...]) -> Problems:
    if any(_hundred(status) not in hundreds for status in match.statuses):
        shown = " or ".join(f"{h}xx" for h in hundreds)
        yield ContractProblem(f"{place}/statuses", f"statuses of this kind are {shown}")


def _hundred(status: int | str) -> int:
    return status // 100 if isinstance(status, int) else int(status[0])


def _doubtful_statuses(safety: SafetyClass, place: str, rule: Rule) -> Problems:
    """A 5xx and a 408 are said by whoever stands in front, too, while the target goes on."""
    has_predicate = rule.body_schema is not None
    doubtful = [s for s in rule.statuses if s == 408 or _hundred(s) == 5]
    if doubtful and not has_predicate:
        if safety is SafetyClass.UNSAFE:
            yield ContractProblem(
                f"{place}/statuses",
                f"{doubtful[0]} alone does not prove that nothing was done, and an unsafe effect "
                "is sent again only on a proof: add a body_schema of the target's own refusal",
            )
        elif not rule.proves_no_commit:
            yield ContractProblem(
                f"{place}/statuses",
                f"{doubtful[0]} alone does not prove that nothing was done: add a body_schema "
                "of the target's own refusal, or state proves_no_commit: true",
            )
    if not has_predicate and rule.header is None and any(_hundred(s) == 2 for s in rule.statuses):
        yield ContractProblem(
            f"{place}/statuses",
            "a 2xx is no refusal by itself: add a body_schema or a header that makes it one",
        )


# The probe --------------------------------------------------------------------------------------


def _probe_finds_by_key(document: ContractDocument, http: HttpSettings) -> Problems:
    probe = http.probe
    if probe is None:
        return
    place = "/adapter/probe"
    of_body = isinstance(probe.key_match, EtagKey) or (
        isinstance(probe.key_match, DigestKey) and probe.key_match.of == "body"
    )
    if of_body and KEY_VARIABLE not in url_variables(probe.url):
        yield ContractProblem(
            f"{place}/url",
            "a digest of the body is the same for two effects with equal arguments: name the key "
            "by {key} in the URL",
        )
    whole_object = isinstance(probe.key_match, TextKey | EtagKey)
    if not of_body and not probe.agree and not probe.agree_lines:
        yield ContractProblem(
            f"{place}/agree",
            "name at least one argument and where the item has it, so that an object under our "
            "key with other content is not taken for ours",
        )
    for name in ("agree", "agree_lines"):
        for pointer in getattr(probe, name):
            if not schema_reaches(document.arguments, pointer_tokens(pointer)):
                yield ContractProblem(
                    f"{place}/{name}", f"{pointer} is no argument of this contract"
                )
    if probe.agree and whole_object:
        yield ContractProblem(
            f"{place}/agree", "this answer is not read as JSON: use agree_lines with key_match text"
        )
    if probe.agree_lines and not isinstance(probe.key_match, TextKey):
        yield ContractProblem(f"{place}/agree_lines", "lines are compared with key_match text only")
    if whole_object and not isinstance(probe.paging, NoPaging):
        yield ContractProblem(f"{place}/paging", "a single object has no pages")
    if probe.method == "HEAD" and not isinstance(probe.key_match, EtagKey):
        yield ContractProblem(f"{place}/method", "HEAD has no body; it goes with key_match etag")
    reads_json = probe.found.content_type == "application/json"
    if isinstance(probe.key_match, TextKey) and reads_json:
        yield ContractProblem(
            f"{place}/found", "state the statuses and the content type of the text answer"
        )
    yield from _only_statuses(f"{place}/found", probe.found, (2,))


def _absence_is_authoritative(_: ContractDocument, http: HttpSettings) -> Problems:
    probe = http.probe
    if probe is None:
        return
    for index, rule in enumerate(probe.absent):
        place = f"/adapter/probe/absent/{index}"
        for status in rule.statuses:
            if isinstance(status, str):
                yield ContractProblem(
                    f"{place}/statuses",
                    f"name the statuses: the class {status} also holds answers that prove nothing",
                )
            elif _hundred(status) == 2 and not (rule.empty_list or rule.body_schema or rule.header):
                yield ContractProblem(
                    place, "a 2xx says that something is there: add empty_list: true or body_schema"
                )
            elif _hundred(status) != 2 and status not in _ABSENT_STATUSES:
                yield ContractProblem(
                    f"{place}/statuses",
                    f"{status} does not say that the effect is not there; 404 and 410 do",
                )
            elif rule.empty_list and _hundred(status) != 2:
                yield ContractProblem(f"{place}/empty_list", f"a {status} has no list")
        if rule.empty_list and _is_whole_object(probe):
            yield ContractProblem(f"{place}/empty_list", "this answer is no list")


def _is_whole_object(probe: ProbeRequest) -> bool:
    return isinstance(probe.key_match, TextKey | EtagKey)


HTTP_RULES: Final[tuple[Callable[[ContractDocument, HttpSettings], Problems], ...]] = (
    _urls_are_private_and_of_one_origin,
    _variables_are_arguments,
    _headers_are_ours_to_set,
    _body_can_be_made,
    _key_has_a_place,
    _rules_prove_what_they_say,
    _probe_finds_by_key,
    _absence_is_authoritative,
)
