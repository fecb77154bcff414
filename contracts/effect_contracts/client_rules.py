"""The rules of contracts whose target is reached through its own protocol: queues, objects, mail.

Owns the reasons to refuse well-formed settings of `sqs`, `s3`, `nats` and `smtp`. They keep the
same promises as those of `http`: the document fixes where a request goes, nothing travels in the
clear to another machine, and no class is claimed that the protocol cannot keep.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, assert_never
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from effect_contracts.aws_settings import S3Settings, SqsSettings
from effect_contracts.body_template import (
    header_variables,
    template_pointers,
    template_problem,
)
from effect_contracts.errors import ContractProblem
from effect_contracts.expressions import (
    KEY_VARIABLE,
    UrlTemplate,
    is_loopback,
    pointer_tokens,
    schema_reaches,
    url_variables,
)
from effect_contracts.facts import SafetyClass
from effect_contracts.http_rules import body_problems
from effect_contracts.nats_settings import NatsSettings
from effect_contracts.smtp_settings import SmtpSettings

if TYPE_CHECKING:
    from effect_contracts.document import ContractDocument

Problems = Iterator[ContractProblem]
ClientSettings = SqsSettings | S3Settings | NatsSettings | SmtpSettings

# "Deduplication interval: 5 minutes" (Amazon SQS, FIFO queue and message identifiers).
SQS_RETENTION_SECONDS: Final = 300.0
SQS_ID_CHARS_MAX: Final = 128

_URL: Final = TypeAdapter[str](UrlTemplate)
_ACCOUNT: Final = re.compile(r"[0-9]{12}")


def broken_client_rules(
    document: ContractDocument, settings: ClientSettings
) -> list[ContractProblem]:
    """Return every broken rule of the settings' kind."""
    match settings:
        case SqsSettings():
            return list(_sqs_problems(document, settings))
        case S3Settings():
            return list(_s3_problems(document, settings))
        case NatsSettings():
            return list(_nats_problems(document, settings))
        case SmtpSettings():
            return list(_smtp_problems(document, settings))
        case never:
            assert_never(never)


def _private(place: str, url: str) -> Problems:
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        yield ContractProblem(
            place, "http:// sends key and arguments in the clear: use https:// (or this machine)"
        )


def _known_variables(document: ContractDocument, place: str, names: tuple[str, ...]) -> Problems:
    for name in names:
        if name != KEY_VARIABLE and not schema_reaches(document.arguments, tuple(name.split("."))):
            yield ContractProblem(
                place, f"{{{name}}} is no argument of this contract (nor {{key}})"
            )


def _account_is_aws(document: ContractDocument) -> Problems:
    if not _ACCOUNT.fullmatch(document.account):
        yield ContractProblem(
            "/account", "the account is the AWS account (12 digits) that owns the target"
        )


# Queues ----------------------------------------------------------------------------------------


def _sqs_problems(document: ContractDocument, sqs: SqsSettings) -> Problems:
    place = "/adapter/queue_url"
    yield from _private(place, sqs.queue_url)
    yield from _account_is_aws(document)
    path = urlsplit(sqs.queue_url).path
    if not path.endswith(".fifo"):
        yield ContractProblem(place, "only a FIFO queue de-duplicates; its URL ends with .fifo")
    elif _ACCOUNT.fullmatch(document.account) and not re.fullmatch(
        rf"/{document.account}/[A-Za-z0-9_-]{{1,75}}\.fifo", path
    ):
        yield ContractProblem(
            place,
            "the path of a queue's URL is its account, which is that of the contract, and "
            "its name: /123456789012/orders.fifo",
        )
    yield from _known_variables(document, "/adapter/group", header_variables(sqs.group))
    retention = document.key_retention_seconds
    if retention is not None and retention > SQS_RETENTION_SECONDS:
        yield ContractProblem(
            "/key_retention_seconds",
            f"SQS keeps a deduplication id for {SQS_RETENTION_SECONDS:g} s, and no setting of it "
            "makes that longer",
        )
    if document.key.length_max is not None and document.key.length_max > SQS_ID_CHARS_MAX:
        yield ContractProblem(
            "/key/length_max", f"a deduplication id has up to {SQS_ID_CHARS_MAX} characters"
        )
    yield from body_problems(document, sqs.body)


def _nats_problems(document: ContractDocument, nats: NatsSettings) -> Problems:
    parts = urlsplit(nats.server)
    if parts.scheme == "nats" and not is_loopback(parts.hostname or ""):
        yield ContractProblem(
            "/adapter/server",
            "nats:// sends key and arguments in the clear: use tls:// (or this machine)",
        )
    yield from body_problems(document, nats.body)


# Objects ---------------------------------------------------------------------------------------


def _s3_problems(document: ContractDocument, s3: S3Settings) -> Problems:
    if s3.endpoint is not None:
        yield from _private("/adapter/endpoint", s3.endpoint)
        if urlsplit(s3.endpoint).path not in {"", "/"}:
            yield ContractProblem("/adapter/endpoint", "an endpoint is scheme, host and port")
    elif "." in s3.bucket:
        yield ContractProblem(
            "/adapter/bucket",
            "a bucket with a dot in its name has no host of its own under TLS: name the endpoint, "
            "for example https://s3.eu-central-1.amazonaws.com",
        )
    yield from _account_is_aws(document)
    template = s3.url_template()
    try:
        _URL.validate_python(template)
    except ValidationError:
        yield ContractProblem(
            "/adapter/object",
            "an object's name is written as the path of a URL: percent-encode what is no letter, "
            "digit or one of -._~/, and write arguments as {name}",
        )
    else:
        yield from _known_variables(document, "/adapter/object", url_variables(template))
    if document.safety is SafetyClass.IDEMPOTENT:
        yield ContractProblem(
            "/safety",
            "a second create is refused and not replayed, and the object can be asked for: its "
            "class is reconcilable",
        )
    yield from body_problems(document, s3.body)


# Mail ------------------------------------------------------------------------------------------


def _smtp_problems(document: ContractDocument, smtp: SmtpSettings) -> Problems:
    places = [("/adapter", smtp.host, smtp.security)]
    if smtp.mailbox is not None:
        places.append(("/adapter/mailbox", smtp.mailbox.host, smtp.mailbox.security))
    for place, host, security in places:
        if security == "none" and not is_loopback(host):
            yield ContractProblem(
                f"{place}/security",
                "mail and password would travel in the clear: use tls or starttls",
            )
    for name in ("to", "subject", "text"):
        template = getattr(smtp, name)
        problem = template_problem(template)
        if problem is not None:
            yield ContractProblem(f"/adapter/{name}", problem)
            continue
        for pointer in template_pointers(template):
            if not schema_reaches(document.arguments, pointer_tokens(pointer)):
                yield ContractProblem(
                    f"/adapter/{name}", f"$arg {pointer} is no argument of this contract"
                )
    if document.safety is SafetyClass.IDEMPOTENT:
        yield ContractProblem(
            "/safety",
            "mail servers compare no Message-ID: the class is unsafe, or reconcilable with a "
            "mailbox that is searched",
        )
