"""Objects of Amazon S3 that are created if their name is free: `If-None-Match: *`.

S3 keeps no key of ours, and refuses a second create with 412. Whose object stands there is read
from its metadata: our downstream key and the digest of what we wrote. S3 reads what was written at
once, so a look-up lags by nothing but a request that is still on its way.

    committed      the object has our key, and the digest of our body
    mismatch       it has another key or none, or our key over other content
    not_committed  NoSuchKey, and nobody has deleted a version of it
    unknown        everything else; a bucket that is not there, a 403, a deleted object
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
from typing import Final

from effect_adapters.aws import AwsSender, AwsService
from effect_adapters.base import (
    Answer,
    DispatchCall,
    Finding,
    ProbeCall,
    RenderError,
    SecretResolver,
)
from effect_adapters.http.bodies import message_body
from effect_adapters.http.exchange import Reply
from effect_adapters.http.rendering import envelope, expanded
from effect_contracts.aws_settings import S3Settings
from effect_contracts.canonical import JsonValue
from effect_contracts.document import ContractDocument
from effect_contracts.expressions import origin_of
from effect_contracts.facts import CODE_ALREADY_EXISTS, Outcome, Verdict

KEY_HEADER: Final = "x-amz-meta-effect-key"
DIGEST_HEADER: Final = "x-amz-meta-effect-digest"
_OWNER_HEADER: Final = "x-amz-expected-bucket-owner"

# Metadata is a header: printable ASCII, and few of it.
_KEY: Final = re.compile(r"[\x21-\x7e]{1,512}")
_ERROR_CODE: Final = re.compile(rb"<Error>.*?<Code>([A-Za-z0-9.]{1,64})</Code>", re.DOTALL)

# Errors that say "later" of a request that was not carried out: a service that is busy, and keys,
# rights or a bucket that are not ready yet, which say nothing about the effect and must not end
# every effect that meets them. ConditionalRequestConflict is of a create that met a delete: "retry
# the upload" (PutObject, API reference).
_RETRYABLE: Final = {
    "AccessDenied": "access_denied",
    "ConditionalRequestConflict": "conflict",
    "ExpiredToken": "access_denied",
    "InvalidAccessKeyId": "access_denied",
    "NoSuchBucket": "bucket_missing",
    "RequestTimeTooSkewed": "clock_skewed",
    "RequestTimeout": "upload_timeout",
    "SignatureDoesNotMatch": "access_denied",
    "SlowDown": "throttled",
    "Throttling": "throttled",
    "ThrottlingException": "throttled",
}
# Of the others only this one is worth a name; they are all final.
_REJECTED: Final = {"EntityTooLarge": "object_too_large"}


class S3Adapter:
    """Implements `effect_adapters.base.Adapter` for contracts of the kind `s3`."""

    def __init__(self, secrets: SecretResolver, tls: ssl.SSLContext | None = None) -> None:
        self._sender = AwsSender("s3", secrets, tls)

    def identity(self, document: ContractDocument) -> str:
        """Return the place of the bucket, and the account that owns it."""
        settings = _settings(document)
        return f"{origin_of(settings.url_template())}/{settings.bucket}#{document.account}"

    def render(
        self, document: ContractDocument, arguments: JsonValue, downstream_key: str
    ) -> bytes:
        """Return the request PutObject. Pure.

        Raises:
            RenderError: the arguments do not make an object under this contract.
        """
        settings = _settings(document)
        text, content_type = message_body(settings.body, arguments, downstream_key)
        if not text:
            raise RenderError("object_empty")  # it could not be told from a stranger's empty one
        if not _KEY.fullmatch(downstream_key):
            raise RenderError("key_invalid")
        headers = (
            ("Accept-Encoding", "identity"),
            ("Content-Type", content_type),
            ("If-None-Match", "*"),
            ("User-Agent", "effect-broker"),
            (DIGEST_HEADER, _digest(text)),
            (_OWNER_HEADER, document.account),
            (KEY_HEADER, downstream_key),
        )
        return envelope("PUT", _url(settings, arguments, downstream_key), headers, text)

    async def dispatch(self, call: DispatchCall) -> Answer:
        """Create the object if its name is free, at most once, within the budget."""
        service = _service(_settings(call.document))
        return await self._sender.dispatch(service, call, _answer_of)

    async def probe(self, call: ProbeCall) -> Finding:
        """Read the object's metadata (and its first byte), within the budget."""
        try:
            return await self._found(call)
        except RenderError as error:
            return Finding(Verdict.UNKNOWN, error.code)
        except Exception:
            return Finding(Verdict.UNKNOWN, "adapter_error")

    async def _found(self, call: ProbeCall) -> Finding:
        settings, key = _settings(call.document), call.downstream_key
        text, _ = message_body(settings.body, call.arguments, key)
        url = _url(settings, call.arguments, key)
        # A GET and no HEAD: its 404 says in its body whether the object is absent, or the bucket.
        headers = (
            ("Accept-Encoding", "identity"),
            ("Range", "bytes=0-0"),
            ("User-Agent", "effect-broker"),
            (_OWNER_HEADER, call.document.account),
        )
        wire = envelope("GET", url, headers, None)
        end = await self._sender.send(_service(settings), wire, call.budget, lambda _point: None)
        if not isinstance(end, Reply):
            return Finding(Verdict.UNKNOWN, end.code)
        verdict, code = _verdict(end, key, _digest(text))
        seen = verdict in {Verdict.COMMITTED, Verdict.MISMATCH}
        fields = _fields(end) if verdict is Verdict.COMMITTED else {}
        return Finding(
            verdict,
            code,
            external_ids=(_object_id(url),) if seen else (),
            result=dict(fields) if fields else None,
            receipt_fields=fields,
            response_digest=end.digest,
            status=end.status,
        )


def _answer_of(call: DispatchCall, reply: Reply) -> Answer:
    status, digest = reply.status, reply.digest
    name = _error_name(reply)
    if status == 200 and reply.header("etag"):
        fields = _fields(reply)
        return Answer(
            Outcome.COMMITTED,
            "committed",
            external_id=_object_id(json.loads(call.wire)["url"]),
            result=dict(fields),
            receipt_fields=fields,
            response_digest=digest,
            status=status,
        )
    if status == 412 and name == "PreconditionFailed":
        outcome, code = Outcome.REJECTED, CODE_ALREADY_EXISTS
    elif name in _RETRYABLE:
        outcome, code = Outcome.RETRYABLE, _RETRYABLE[name]
    elif 400 <= status <= 499 and status not in {408, 412} and name:
        # A refusal of S3 itself, by its own error document: nothing was written.
        outcome, code = Outcome.REJECTED, _REJECTED.get(name, "refused")
    elif status == 200:
        outcome, code = Outcome.AMBIGUOUS, "success_header"
    else:
        outcome, code = Outcome.AMBIGUOUS, f"unmatched_status_{status}"
    return Answer(outcome, code, status=status, response_digest=digest)


def _verdict(reply: Reply, key: str, digest: str) -> tuple[Verdict, str]:
    match reply.status:
        case 200 | 206:
            if reply.header(KEY_HEADER) != key:
                return Verdict.MISMATCH, "found_other"
            if reply.header(DIGEST_HEADER) != digest:
                return Verdict.MISMATCH, "fields_disagree"
            return Verdict.COMMITTED, "found"
        case 416:
            return Verdict.MISMATCH, "found_other"  # an empty object, and ours never is
        case 404 if _error_name(reply) == "NoSuchKey":
            if reply.header("x-amz-delete-marker") == "true":
                return Verdict.UNKNOWN, "deleted"
            return Verdict.NOT_COMMITTED, "absent_status_404"
        case status:
            return Verdict.UNKNOWN, f"unmatched_status_{status}"


def _error_name(reply: Reply) -> str:
    found = _ERROR_CODE.search(reply.body)
    return "" if found is None else found.group(1).decode()


def _fields(reply: Reply) -> dict[str, JsonValue]:
    named = {"etag": reply.header("etag"), "version_id": reply.header("x-amz-version-id")}
    return {name: value[:1024] for name, value in named.items() if value}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _url(settings: S3Settings, arguments: JsonValue, key: str) -> str:
    return expanded(settings.url_template(), arguments, key)


def _object_id(url: str) -> str:
    return url.partition("://")[2][:1024]


def _service(settings: S3Settings) -> AwsService:
    origin = origin_of(settings.url_template())
    return AwsService("s3", origin, settings.region, settings.credentials)


def _settings(document: ContractDocument) -> S3Settings:
    assert isinstance(document.adapter, S3Settings), "the registry picks adapters by kind"
    return document.adapter
