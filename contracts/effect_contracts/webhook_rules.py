"""The rules of a contract's `webhook` section: what a delivery must show before it proves anything.

They keep the promise of every look-up for a word that comes unasked as well: an object counts as
ours only if our key is on it and its payload is what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from effect_contracts.body_template import header_variables, template_has_key
from effect_contracts.errors import ContractProblem
from effect_contracts.expressions import (
    KEY_VARIABLE,
    pointer_tokens,
    schema_reaches,
    url_variables,
)
from effect_contracts.facts import SafetyClass
from effect_contracts.http_settings import HttpSettings, NoBody, TemplateHeader
from effect_contracts.webhook_settings import (
    BODY_PLACE,
    TIMESTAMP_PLACE,
    HmacScheme,
    WebhookSettings,
)

if TYPE_CHECKING:
    from effect_contracts.document import ContractDocument

Problems = Iterator[ContractProblem]


def broken_webhook_rules(
    document: ContractDocument, webhook: WebhookSettings
) -> list[ContractProblem]:
    """Return every broken rule, in the order of `WEBHOOK_RULES`."""
    return [problem for rule in WEBHOOK_RULES for problem in rule(document, webhook)]


def _target_is_outside(document: ContractDocument, _: WebhookSettings) -> Problems:
    if document.safety is SafetyClass.TRANSACTIONAL:
        yield ContractProblem(
            "/webhook",
            "a transactional effect has its receipt in the same commit; nobody outside can tell "
            "more: remove the section",
        )


def _says_something(_: ContractDocument, webhook: WebhookSettings) -> Problems:
    if webhook.committed is None and webhook.failed is None:
        yield ContractProblem(
            "/webhook/committed",
            "say which deliveries count: committed, failed, or both, each an expression that is "
            "true of them",
        )


def _finds_its_effect(_: ContractDocument, webhook: WebhookSettings) -> Problems:
    if webhook.key_match is None and webhook.extraction.external_id is None:
        yield ContractProblem(
            "/webhook/key_match",
            "say where a delivery has our key (key_match), or the target's id of the object "
            "(extraction.external_id)",
        )


def _proof_compares_key_and_payload(_: ContractDocument, webhook: WebhookSettings) -> Problems:
    if webhook.committed is None:
        return
    if webhook.key_match is None and webhook.extraction.external_id is not None:
        yield ContractProblem(
            "/webhook/key_match",
            "a delivery proves a commit only where it shows our key: say where it stands, or keep "
            "failed alone",
        )
    if not webhook.agree:
        yield ContractProblem(
            "/webhook/agree",
            "name at least one argument and where a delivery has it, so that an object under our "
            "key with other content is not taken for ours",
        )


def _agree_names_arguments(document: ContractDocument, webhook: WebhookSettings) -> Problems:
    for pointer in webhook.agree:
        if not schema_reaches(document.arguments, pointer_tokens(pointer)):
            yield ContractProblem("/webhook/agree", f"{pointer} is no argument of this contract")


def _target_was_told_the_key(document: ContractDocument, webhook: WebhookSettings) -> Problems:
    http = document.adapter
    if webhook.key_match is None or not isinstance(http, HttpSettings) or http.key is not None:
        return
    in_body = not isinstance(http.body, NoBody) and template_has_key(http.body.content)
    in_header = any(
        isinstance(value, TemplateHeader) and KEY_VARIABLE in header_variables(value.template)
        for value in http.headers.values()
    )
    if not in_body and not in_header and KEY_VARIABLE not in url_variables(http.url):
        yield ContractProblem(
            "/webhook/key_match",
            "the request does not carry our key, so that no delivery can show it: say where it "
            "goes by adapter.key",
        )


def _signed_content_is_whole(_: ContractDocument, webhook: WebhookSettings) -> Problems:
    scheme = webhook.scheme
    if not isinstance(scheme, HmacScheme):
        return
    place = "/webhook/scheme/content"
    if scheme.content.count(BODY_PLACE) != 1:
        yield ContractProblem(place, "the signed content has {body} once: all of it is signed")
    elif not scheme.content.endswith(BODY_PLACE):
        yield ContractProblem(place, "{body} stands at the end of the signed content")
    signs_time = scheme.content.count(TIMESTAMP_PLACE)
    if signs_time > 1:
        yield ContractProblem(place, "the signed content has {timestamp} once")
    if (signs_time > 0) != (scheme.timestamp_header is not None):
        yield ContractProblem(
            "/webhook/scheme/timestamp_header",
            "a time counts only if it is signed: name the header and write {timestamp} into "
            "content, or leave both out",
        )


WEBHOOK_RULES: Final[tuple[Callable[[ContractDocument, WebhookSettings], Problems], ...]] = (
    _target_is_outside,
    _says_something,
    _finds_its_effect,
    _proof_compares_key_and_payload,
    _agree_names_arguments,
    _target_was_told_the_key,
    _signed_content_is_whole,
)
