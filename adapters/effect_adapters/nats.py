"""Messages to a stream of NATS JetStream: the downstream key is the header `Nats-Msg-Id`.

JetStream acknowledges a message when it is stored; a known id within the duplicate window is
acknowledged with the sequence of the first one and `duplicate`, and stored once. The window is the
stream's own, and is read before each publish: one that is shorter than the contract believes sends
nothing. Which text came under an id is compared by nobody but the broker.

The client library is made for long connections that heal themselves, and here each attempt has a
connection of its own that must not: no reconnect, no other server of the cluster, and below the
library a transport that lets one publish through, within the budget, and resets the connection
unless an answer came. That transport also keeps credentials from a server that does not make TLS
although the contract asks for it, which the library would not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import socket
import ssl
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from effect_adapters.base import (
    Answer,
    DispatchCall,
    Finding,
    ProbeCall,
    RenderError,
    SecretResolver,
    SecretUnavailable,
    name_or_secret,
    not_sent,
    secret_value,
)
from effect_adapters.extras import ExtraMissing, require_extra
from effect_adapters.http.bodies import message_body
from effect_adapters.http.connection import trusting_tls
from effect_contracts.canonical import JsonObject, JsonValue, canonical_bytes
from effect_contracts.document import ContractDocument
from effect_contracts.errors import InvalidPayload
from effect_contracts.facts import Outcome, SafetyClass, Verdict
from effect_contracts.nats_settings import NatsPassword, NatsSettings, NatsToken

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.api import PubAck, StreamInfo
    from nats.js.errors import APIError

WIRE_VERSION: Final = 1
_CLOSE_SECONDS: Final = 1.0
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
# What a server takes by default (max_payload); one that is set to less refuses.
_MESSAGE_BYTES_MAX: Final = 1_048_576

# What JetStream says instead of an acknowledgement (server/errors.json of nats-server): nothing was
# stored. An error that is not listed proves nothing.
_ERRORS: Final = {
    10023: (Outcome.RETRYABLE, "insufficient_resources"),
    10047: (Outcome.RETRYABLE, "insufficient_storage"),
    10054: (Outcome.REJECTED, "message_too_large"),
    10060: (Outcome.REJECTED, "other_stream"),
    10077: (Outcome.RETRYABLE, "stream_full"),
    10109: (Outcome.REJECTED, "stream_sealed"),
    10158: (Outcome.IN_PROGRESS, "in_progress"),
}


class NatsAdapter:
    """Implements `effect_adapters.base.Adapter` for contracts of the kind `nats`."""

    def __init__(self, secrets: SecretResolver, tls: ssl.SSLContext | None = None) -> None:
        """`tls` verifies peers; without one, the process's own context does."""
        self._secrets = secrets
        self._own_tls = tls

    def identity(self, document: ContractDocument) -> str:
        """Return server, stream and account."""
        settings = _settings(document)
        return f"{settings.server}/{settings.stream}#{document.account}"

    def render(
        self, document: ContractDocument, arguments: JsonValue, downstream_key: str
    ) -> bytes:
        """Return subject, headers and text as canonical JSON. Pure.

        Raises:
            RenderError: the arguments do not make a message under this contract.
        """
        settings = _settings(document)
        text, _ = message_body(settings.body, arguments, downstream_key)
        if len(text.encode()) > _MESSAGE_BYTES_MAX:
            raise RenderError("message_too_large")
        if not _KEY.fullmatch(downstream_key):
            raise RenderError("key_invalid")
        wire: JsonObject = {
            "version": WIRE_VERSION,
            "subject": settings.subject,
            "headers": {"Nats-Expected-Stream": settings.stream, "Nats-Msg-Id": downstream_key},
            "body": text,
        }
        try:
            return canonical_bytes(wire, bytes_max=4 * _MESSAGE_BYTES_MAX)
        except InvalidPayload:
            raise RenderError("message_invalid") from None

    async def dispatch(self, call: DispatchCall) -> Answer:
        """Publish the stored message at most once, within the budget."""
        settings = _settings(call.document)
        try:
            require_extra("nats")
            stored = json.loads(call.wire)
            if stored["version"] != WIRE_VERSION or stored["subject"] != settings.subject:
                return not_sent("wire_invalid")
            options = self._credentials(settings)
        except ExtraMissing as missing:
            return not_sent(missing.code)
        except SecretUnavailable:
            return not_sent("secret_unavailable")
        except Exception:
            return not_sent("wire_invalid")
        if settings.server.startswith("tls:"):
            options["tls"] = self._own_tls or trusting_tls()
        return await _Publication(settings, call, stored, options).run()

    async def probe(self, call: ProbeCall) -> Finding:
        """A stream keeps no index of ids that could be asked."""
        return Finding(Verdict.UNKNOWN, "no_probe")

    def _credentials(self, settings: NatsSettings) -> dict[str, Any]:
        match settings.auth:
            case None:
                return {}
            case NatsPassword(username=username, password=password):
                return {
                    "user": name_or_secret(username, self._secrets),
                    "password": secret_value(password, self._secrets),
                }
            case NatsToken(token=token):
                return {"token": secret_value(token, self._secrets)}


class _Publication:
    """One attempt: connect, read the stream's window, publish once, hear the acknowledgement."""

    def __init__(
        self,
        settings: NatsSettings,
        call: DispatchCall,
        stored: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        self._settings = settings
        self._call = call
        self._stored = stored
        self._options = options
        self._denied = False
        # The connection ended, or the server said that it will not take the publish: no answer will
        # come, and the library would wait for one.
        self._over = asyncio.Event()
        self._way: Any = None

    async def run(self) -> Answer:
        """Publish at most once, within the budget.

        Raises:
            asyncio.CancelledError: the task was cancelled; the connection has been reset.
        """
        from nats.aio.client import Client

        from effect_adapters.nats_way import Way, WayRefused

        budget = self._call.budget
        if budget.remaining_seconds() <= 0:
            return not_sent("budget_spent")
        client = Client()
        self._way = Way(budget, private=self._settings.server.startswith("tls:"))
        # The library has no place to give one; a test asserts that it still takes this one.
        client._transport = self._way
        try:
            async with asyncio.timeout(budget.remaining_seconds()) as limit:
                # The library's own reader may end without a word to who waits.
                self._way.flooded = lambda: limit.reschedule(0.0)
                self._way.past_last_gate = lambda: self._call.reach("after_last_gate")
                return await self._published(client)
        except TimeoutError:
            return self._unfinished(self._way.flood or "deadline")
        except WayRefused as refused:
            return self._unfinished(refused.code)
        except Exception:
            # The mapping boundary: a library's text may hold what nobody may read.
            return self._unfinished("closed_without_answer" if self._sent else "connect_failed")
        finally:
            self._way.abort()
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await client.close()

    @property
    def _sent(self) -> bool:
        return bool(self._way.published)

    def _unfinished(self, code: str) -> Answer:
        if not self._sent:
            return not_sent(self._way.refusal or code)
        if self._denied:
            # By the server's own word, and by name: it did not take the publish.
            return Answer(Outcome.REJECTED, "access_denied")
        return Answer(Outcome.AMBIGUOUS, code)

    async def _published(self, client: Client) -> Answer:
        from nats.js.errors import APIError, NoStreamResponseError

        seconds = max(self._call.budget.remaining_seconds(), 0.001)
        await client.connect(
            servers=[self._settings.server],
            allow_reconnect=False,
            connect_timeout=math.ceil(seconds),
            error_cb=self._on_error,
            closed_cb=self._on_closed,
            name="effect-broker",
            **self._options,
        )
        stream = client.jetstream(timeout=seconds)
        short = await self._window_problem(stream)
        if short is not None:
            return not_sent(short)
        self._call.reach("before_socket_write")
        if self._call.budget.remaining_seconds() <= 0:
            return not_sent("budget_spent")
        self._way.armed = True
        try:
            ack = await self._heard(
                stream.publish(
                    self._settings.subject,
                    self._stored["body"].encode(),
                    timeout=seconds,
                    headers=dict(self._stored["headers"]),
                )
            )
        except APIError as error:
            return _error_answer(error)
        except NoStreamResponseError:
            # "No responders": no stream listens on this subject, so none has stored the message.
            return Answer(Outcome.RETRYABLE, "stream_missing")
        return self._acknowledged(ack)

    async def _heard(self, publish: Coroutine[Any, Any, PubAck]) -> PubAck:
        answer = asyncio.ensure_future(publish)
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({answer, over}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ConnectionError
            return answer.result()
        finally:
            answer.cancel()
            over.cancel()

    async def _window_problem(self, stream: Any) -> str | None:
        from nats.js.errors import APIError, NotFoundError

        try:
            info: StreamInfo = await stream.stream_info(self._settings.stream)
        except NotFoundError:
            return "stream_missing"
        except APIError:
            return "stream_unavailable"
        if info.config.no_ack:
            return "stream_without_acks"
        document = self._call.document
        retention = document.key_retention_seconds
        if document.safety is not SafetyClass.IDEMPOTENT or retention is None:
            return None
        return "duplicate_window_short" if info.config.duplicate_window < retention else None

    def _acknowledged(self, ack: PubAck) -> Answer:
        sequence: object = ack.seq
        if ack.stream != self._settings.stream or not isinstance(sequence, int) or sequence < 1:
            return Answer(Outcome.AMBIGUOUS, "ack_invalid")
        self._way.release()
        fields: dict[str, JsonValue] = {"stream": ack.stream, "sequence": sequence}
        return Answer(
            Outcome.COMMITTED,
            "committed",
            external_id=f"{ack.stream}:{sequence}",
            result={**fields, "duplicate": bool(ack.duplicate)},
            receipt_fields=fields,
        )

    async def _on_closed(self) -> None:
        self._over.set()

    async def _on_error(self, error: Exception) -> None:
        """Hear what the library would log; it goes on trying to connect unless this raises."""
        from effect_adapters.nats_way import WayRefused

        if isinstance(error, WayRefused):
            raise error
        if not self._way.connected:
            raise WayRefused(_connect_code(error))
        text = str(error).lower()
        if "authorization" in text:
            self._way.refusal = self._way.refusal or "access_denied"
        if "permissions violation" in text and f'publish to "{self._settings.subject}"' in text:
            self._denied = True
            self._over.set()


def _connect_code(error: Exception) -> str:
    match error:
        case ConnectionRefusedError():
            return "connect_refused"
        case socket.gaierror():
            return "dns_failed"
        case TimeoutError():
            return "connect_timeout"
        case _:
            return "connect_failed"


def _error_answer(error: APIError) -> Answer:
    outcome, code = _ERRORS.get(error.err_code or 0, (Outcome.AMBIGUOUS, "unlisted_error"))
    return Answer(outcome, code)


def _settings(document: ContractDocument) -> NatsSettings:
    assert isinstance(document.adapter, NatsSettings), "the registry picks adapters by kind"
    return document.adapter
