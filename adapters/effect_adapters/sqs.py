"""FIFO queues of Amazon SQS: the downstream key is the MessageDeduplicationId.

SQS takes a message of a known id and delivers it once for five minutes, whatever its text; the
second send is answered like the first. So a repeat settles a lost answer, and nothing in SQS
refuses another message under the same id: it is the broker that binds arguments to a key, and
stores the request before it sends it. The answer's MessageId may be another one each time, and is
no id of the effect; the deduplication id is.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from typing import Any, Final

from effect_adapters.answers import BodyInvalid, parse_answer
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
from effect_adapters.http.rendering import envelope, filled_template
from effect_contracts.aws_settings import SqsSettings
from effect_contracts.canonical import JsonValue, canonical_bytes
from effect_contracts.document import ContractDocument
from effect_contracts.errors import InvalidPayload
from effect_contracts.expressions import origin_of
from effect_contracts.facts import Outcome, Verdict

# Characters of MessageDeduplicationId and MessageGroupId (SendMessage, API reference).
_ID: Final = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")
# "The maximum is 1,048,576 bytes" for a message; a queue may be set to less and refuses it then.
_MESSAGE_BYTES_MAX: Final = 1_048_576

# Errors that say "later" of a request that was not carried out: a service that is busy, and keys,
# rights or a queue that are not ready yet, which say nothing about the effect and must not end
# every effect that meets them.
_RETRYABLE: Final = {
    "AccessDenied": "access_denied",
    "AccessDeniedException": "access_denied",
    "ExpiredTokenException": "access_denied",
    "InvalidClientTokenId": "access_denied",
    "InvalidSignatureException": "access_denied",
    "KmsThrottled": "throttled",
    "OverLimit": "throttled",
    "QueueDoesNotExist": "queue_missing",
    "RequestExpired": "clock_skewed",
    "RequestThrottled": "throttled",
    "SignatureDoesNotMatch": "access_denied",
    "Throttling": "throttled",
    "ThrottlingException": "throttled",
    "TooManyRequestsException": "throttled",
    "UnrecognizedClientException": "access_denied",
}
# Of the others only this one is worth a name; they are all final.
_REJECTED: Final = {"InvalidMessageContents": "message_invalid"}


class SqsAdapter:
    """Implements `effect_adapters.base.Adapter` for contracts of the kind `sqs`."""

    def __init__(self, secrets: SecretResolver, tls: ssl.SSLContext | None = None) -> None:
        self._sender = AwsSender("sqs", secrets, tls)

    def identity(self, document: ContractDocument) -> str:
        """Return the queue and its account."""
        return f"{_settings(document).queue_url}#{document.account}"

    def render(
        self, document: ContractDocument, arguments: JsonValue, downstream_key: str
    ) -> bytes:
        """Return the request SendMessage in the JSON protocol of AWS. Pure.

        Raises:
            RenderError: the arguments do not make a message under this contract.
        """
        settings = _settings(document)
        text, _ = message_body(settings.body, arguments, downstream_key)
        if not text or len(text.encode()) > _MESSAGE_BYTES_MAX:
            raise RenderError("message_too_large" if text else "message_empty")
        group = filled_template(settings.group, arguments, downstream_key)
        if not _ID.fullmatch(group):
            raise RenderError("group_invalid")
        if not _ID.fullmatch(downstream_key):
            raise RenderError("key_invalid")
        message: dict[str, JsonValue] = {
            "QueueUrl": settings.queue_url,
            "MessageBody": text,
            "MessageDeduplicationId": downstream_key,
            "MessageGroupId": group,
        }
        try:
            body = canonical_bytes(message, bytes_max=8 * _MESSAGE_BYTES_MAX).decode()
        except InvalidPayload:
            raise RenderError("message_invalid") from None
        headers = (
            ("Accept-Encoding", "identity"),
            ("Content-Type", "application/x-amz-json-1.0"),
            ("User-Agent", "effect-broker"),
            ("X-Amz-Target", "AmazonSQS.SendMessage"),
        )
        return envelope("POST", origin_of(settings.queue_url) + "/", headers, body)

    async def dispatch(self, call: DispatchCall) -> Answer:
        """Send the stored message at most once, within the budget."""
        settings = _settings(call.document)
        service = AwsService(
            "sqs", origin_of(settings.queue_url), settings.region, settings.credentials
        )
        return await self._sender.dispatch(service, call, _answer_of)

    async def probe(self, call: ProbeCall) -> Finding:
        """A queue cannot be asked for a message."""
        return Finding(Verdict.UNKNOWN, "no_probe")


def _answer_of(call: DispatchCall, reply: Reply) -> Answer:
    status, digest = reply.status, reply.digest
    try:
        body = parse_answer(reply.body)
    except BodyInvalid:
        body = None
    if not isinstance(body, dict):
        code = "success_body_invalid" if status == 200 else f"unmatched_status_{status}"
        return Answer(Outcome.AMBIGUOUS, code, status=status, response_digest=digest)
    if status == 200:
        return _taken(call, reply, body)
    name = str(body.get("__type", "")).rpartition("#")[2]
    if name in _RETRYABLE or status == 429:
        code = _RETRYABLE.get(name, "throttled")
        return Answer(Outcome.RETRYABLE, code, status=status, response_digest=digest)
    if 400 <= status <= 499 and status != 408 and name:
        # A refusal of SQS itself, by its own error document: nothing was enqueued.
        code = _REJECTED.get(name, "refused")
        return Answer(Outcome.REJECTED, code, status=status, response_digest=digest)
    return Answer(
        Outcome.AMBIGUOUS, f"unmatched_status_{status}", status=status, response_digest=digest
    )


def _taken(call: DispatchCall, reply: Reply, body: dict[str, Any]) -> Answer:
    """A message id, and the digest of the very text that was sent, or nothing is proved."""
    message_id = body.get("MessageId")
    digest = hashlib.md5(_message_text(call.wire).encode(), usedforsecurity=False).hexdigest()
    if not isinstance(message_id, str) or not message_id or len(message_id) > 100:
        code = "success_body_invalid"
    elif body.get("MD5OfMessageBody") != digest:
        code = "digest_mismatch"
    else:
        fields: dict[str, JsonValue] = {"message_id": message_id}
        sequence = body.get("SequenceNumber")
        if isinstance(sequence, str) and sequence.isdigit() and len(sequence) <= 40:
            fields["sequence_number"] = sequence
        return Answer(
            Outcome.COMMITTED,
            "committed",
            external_id=call.downstream_key,
            result=dict(fields),
            receipt_fields=fields,
            response_digest=reply.digest,
            status=reply.status,
        )
    return Answer(Outcome.AMBIGUOUS, code, status=reply.status, response_digest=reply.digest)


def _message_text(wire: bytes) -> str:
    return str(parse_answer(str(parse_answer(wire)["body"]).encode())["MessageBody"])


def _settings(document: ContractDocument) -> SqsSettings:
    assert isinstance(document.adapter, SqsSettings), "the registry picks adapters by kind"
    return document.adapter
