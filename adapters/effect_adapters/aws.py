"""What the adapters of AWS share: a stored request, signed for one attempt and sent once.

A service of AWS is reached by HTTP, so a request goes through the same exchange as any other
(`effect_adapters.http.exchange`): one connection, one budget over all of it, no retry, a reset when
nothing came. Of the SDK only the signature is used (SigV4 of botocore). Its client is not: it
repeats requests, bounds single reads instead of the whole, and looks for credentials in the
environment, in profiles and at the machine's metadata service. The keys here are those of the
contract's secret references, read anew for each request, and no other.

The wire request is stored without date and signature: method, URL, headers, body, as canonical
JSON.
"""

from __future__ import annotations

import json
import logging
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from effect_adapters.base import (
    Answer,
    Budget,
    DispatchCall,
    Reach,
    RenderError,
    SecretResolver,
    SecretUnavailable,
    not_sent,
    secret_value,
)
from effect_adapters.extras import ExtraMissing, require_extra
from effect_adapters.http.connection import verifying_tls
from effect_adapters.http.exchange import End, Lost, NotSent, OutgoingRequest, Reply, exchange
from effect_adapters.http.rendering import ENVELOPE_VERSION, request_target, target_origin
from effect_contracts.aws_settings import AwsCredentials
from effect_contracts.expressions import origin_of
from effect_contracts.facts import Outcome

# An answer to a write and the head of an object are small; an error is a short document.
RESPONSE_BYTES_MAX: Final = 65_536

# A key id or a secret of AWS, and the long text of a session token.
_CREDENTIAL: Final = re.compile(r"[\x21-\x7e]{1,8192}")


@dataclass(frozen=True, slots=True)
class AwsService:
    """Where requests go and who signs them."""

    name: str
    origin: str
    region: str
    credentials: AwsCredentials


class AwsSender:
    """Signs stored requests and sends each once."""

    def __init__(self, kind: str, secrets: SecretResolver, tls: ssl.SSLContext | None) -> None:
        """`tls` verifies peers; without one, the process's own context does."""
        self._kind = kind
        self._secrets = secrets
        self._own_tls = tls

    async def send(
        self,
        service: AwsService,
        wire: bytes,
        budget: Budget,
        reach: Reach,
        *,
        hang_up: bool = False,
    ) -> End:
        """Send `wire` at most once, within the budget, and return how that ended."""
        try:
            request = self._signed(service, wire)
        except ExtraMissing as missing:
            return NotSent(missing.code)
        except SecretUnavailable:
            return NotSent("secret_unavailable")
        except RenderError as error:
            return NotSent(error.code)
        except Exception:
            return NotSent("wire_invalid")  # nothing has been sent yet
        tls = self._own_tls or verifying_tls()
        return await exchange(request, budget, reach, RESPONSE_BYTES_MAX, tls, hang_up=hang_up)

    async def dispatch(
        self, service: AwsService, call: DispatchCall, read: Callable[[DispatchCall, Reply], Answer]
    ) -> Answer:
        """Send the call's stored request at most once; `read` says what a reply proves."""
        end = await self.send(service, call.wire, call.budget, call.reach, hang_up=call.hang_up)
        match end:
            case NotSent(code):
                return not_sent(code)
            case Lost(code, status, digest):
                return Answer(Outcome.AMBIGUOUS, code, status=status, response_digest=digest)
            case Reply():
                try:
                    return read(call, end)
                except Exception:
                    # It came after the request had gone, and proves nothing.
                    return Answer(Outcome.AMBIGUOUS, "adapter_error", status=end.status)

    def _signed(self, service: AwsService, wire: bytes) -> OutgoingRequest:
        require_extra(self._kind)
        stored = json.loads(wire)
        url = stored["url"]
        if stored["version"] != ENVELOPE_VERSION:
            raise RenderError("wire_version_unknown")
        if origin_of(url) != service.origin:
            raise RenderError("origin_changed")
        body = (stored["body"] or "").encode()
        headers = self._signature(service, stored["method"], url, stored["headers"], body)
        encoded = tuple((name.encode("ascii"), value.encode("ascii")) for name, value in headers)
        return OutgoingRequest(
            stored["method"], target_origin(url), request_target(url), encoded, body
        )

    def _signature(
        self, service: AwsService, method: str, url: str, headers: list[Any], body: bytes
    ) -> list[tuple[str, str]]:
        """Return the headers with those of a signature made now."""
        from botocore.auth import (  # type: ignore[import-untyped]
            S3SigV4Auth,
            SigV4Auth,
        )
        from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
        from botocore.credentials import Credentials  # type: ignore[import-untyped]

        # At DEBUG it writes the request and the session token down.
        logging.getLogger("botocore.auth").setLevel(logging.INFO)
        keys = service.credentials
        token = keys.session_token
        credentials = Credentials(
            self._secret(keys.access_key_id),
            self._secret(keys.secret_access_key),
            None if token is None else self._secret(token),
        )
        request = AWSRequest(method, url, headers=dict(headers), data=body)
        signer = S3SigV4Auth if service.name == "s3" else SigV4Auth
        signer(credentials, service.name, service.region).add_auth(request)
        return [(str(name), str(value)) for name, value in request.headers.items()]

    def _secret(self, reference: str) -> str:
        value = secret_value(reference, self._secrets)
        if not _CREDENTIAL.fullmatch(value):
            raise RenderError("secret_invalid")
        return value
