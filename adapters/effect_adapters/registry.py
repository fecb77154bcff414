"""Which adapter serves which kind of contract.

`document.adapter.kind` picks. A kind's module is imported when its adapter is first asked for, so
that a process which never sends mail loads no mail library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from effect_adapters.base import Adapter, SecretResolver, TransactionalAdapter

if TYPE_CHECKING:
    from effect_adapters.caller import Probe

AnyAdapter: TypeAlias = "Adapter | TransactionalAdapter"
Maker: TypeAlias = Callable[[SecretResolver], AnyAdapter]


def _http(secrets: SecretResolver) -> Adapter:
    from effect_adapters.http import HttpAdapter

    return HttpAdapter(secrets)


def _mcp(secrets: SecretResolver) -> Adapter:
    from effect_adapters.mcp import McpAdapter

    return McpAdapter(secrets)


def _postgres(secrets: SecretResolver) -> TransactionalAdapter:
    from effect_adapters.postgres import PostgresFunctionAdapter

    return PostgresFunctionAdapter()


def _caller(secrets: SecretResolver, probes: Mapping[str, Probe] | None = None) -> Adapter:
    from effect_adapters.caller import CallerAdapter

    return CallerAdapter(_http(secrets), probes)


def _nats(secrets: SecretResolver) -> Adapter:
    from effect_adapters.nats import NatsAdapter

    return NatsAdapter(secrets)


def _s3(secrets: SecretResolver) -> Adapter:
    from effect_adapters.s3 import S3Adapter

    return S3Adapter(secrets)


def _smtp(secrets: SecretResolver) -> Adapter:
    from effect_adapters.smtp import SmtpAdapter

    return SmtpAdapter(secrets)


def _sqs(secrets: SecretResolver) -> Adapter:
    from effect_adapters.sqs import SqsAdapter

    return SqsAdapter(secrets)


# One line for each kind that a process may serve. `simulated` is absent: only a proof has targets
# for it, and puts its own adapter in.
_MAKERS: Mapping[str, Maker] = {
    "caller": _caller,
    "http": _http,
    "mcp": _mcp,
    "nats": _nats,
    "postgres": _postgres,
    "s3": _s3,
    "smtp": _smtp,
    "sqs": _sqs,
}


class _Adapters(Mapping[str, AnyAdapter]):
    """The adapters by kind, each made once, when it is first asked for."""

    def __init__(self, secrets: SecretResolver, makers: Mapping[str, Maker]) -> None:
        self._secrets = secrets
        self._makers = makers
        self._made: dict[str, AnyAdapter] = {}

    def __getitem__(self, kind: str) -> AnyAdapter:
        if kind not in self._made:
            self._made[kind] = self._makers[kind](self._secrets)
        return self._made[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def adapters(
    secrets: SecretResolver, probes: Mapping[str, Probe] | None = None
) -> Mapping[str, AnyAdapter]:
    """Return every shipped adapter by kind; `secrets` resolves references at dispatch and probe.

    `probes` are the registered look-ups for effects that their callers perform, by name. Looking
    up a kind that is not served raises KeyError.
    """
    return _Adapters(secrets, {**_MAKERS, "caller": partial(_caller, probes=probes)})
