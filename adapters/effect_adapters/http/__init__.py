"""The declarative HTTP adapter: a target described by a contract document and nothing else.

`exchange` owns what is proved to have left and `connection` the socket under it; `rendering` and
`bodies` make the bytes; `classify` says what an answer proves, `probing` and `paging` what a
look-up proves.
"""

from __future__ import annotations

import ssl

from effect_adapters.base import (
    Answer,
    DispatchCall,
    Finding,
    ProbeCall,
    RenderError,
    SecretResolver,
    SecretUnavailable,
    not_sent,
)
from effect_adapters.http.classify import answer_of
from effect_adapters.http.connection import verifying_tls
from effect_adapters.http.exchange import exchange
from effect_adapters.http.probing import Prober
from effect_adapters.http.rendering import SecretInvalid, outgoing, render
from effect_contracts.canonical import JsonValue
from effect_contracts.document import ContractDocument
from effect_contracts.expressions import origin_of
from effect_contracts.facts import Outcome, Verdict
from effect_contracts.http_settings import HttpSettings

__all__ = ["HttpAdapter"]


class HttpAdapter:
    """Implements `effect_adapters.base.Adapter` for contracts of the kind `http`."""

    def __init__(self, secrets: SecretResolver, tls: ssl.SSLContext | None = None) -> None:
        """`tls` verifies peers; without one, the process's own context does."""
        self._secrets = secrets
        self._own_tls = tls

    def identity(self, document: ContractDocument) -> str:
        """Return origin and account, for example `https://api.example.com#acct_1`."""
        return f"{origin_of(_settings(document).url)}#{document.account}"

    def render(
        self, document: ContractDocument, arguments: JsonValue, downstream_key: str
    ) -> bytes:
        """Return the wire envelope; see `effect_adapters.http.rendering`."""
        return render(_settings(document), arguments, downstream_key)

    async def dispatch(self, call: DispatchCall) -> Answer:
        """Send the stored request at most once, within the budget."""
        settings = _settings(call.document)
        refusal: str | None = None
        try:
            request = outgoing(settings, call.wire, self._secrets)
        except SecretUnavailable:
            refusal = "secret_unavailable"
        except SecretInvalid:
            refusal = "secret_invalid"
        except RenderError as error:
            refusal = error.code
        except Exception:
            refusal = "wire_invalid"  # nothing has been sent yet
        if refusal is not None:
            return not_sent(refusal)
        end = await exchange(
            request,
            call.budget,
            call.reach,
            settings.response_bytes_max,
            self._tls(),
            hang_up=call.hang_up,
        )
        try:
            return answer_of(settings, end)
        except Exception:
            # Whatever the answer was: it came after the request had gone, and proves nothing.
            return Answer(Outcome.AMBIGUOUS, "adapter_error")

    async def probe(self, call: ProbeCall) -> Finding:
        """Ask the target by reads alone, within the budget."""
        settings = _settings(call.document)
        try:
            return await Prober(settings, call, self._secrets, self._tls()).find()
        except Exception:
            return Finding(Verdict.UNKNOWN, "adapter_error")

    def _tls(self) -> ssl.SSLContext:
        return self._own_tls or verifying_tls()


def _settings(document: ContractDocument) -> HttpSettings:
    assert isinstance(document.adapter, HttpSettings), "the registry picks adapters by kind"
    return document.adapter
