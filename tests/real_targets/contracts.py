"""The contracts of the real targets, as they are applied to a target that runs here.

What ships in the catalog is what is tested: only the origin is another one, and times are shorter
where a test would otherwise wait for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import yaml

from adapter_calls import budget, ignore, merged
from effect_adapters.base import Answer, DispatchCall, Finding, ProbeCall
from effect_adapters.http import HttpAdapter
from effect_broker.secretrefs import SecretReferences
from effect_contracts.canonical import JsonValue
from effect_contracts.catalog import catalog_texts
from effect_contracts.document import ContractDocument
from effect_contracts.expressions import origin_of
from effect_contracts.keys import downstream_key

HERE: Final = Path(__file__).resolve().parent
_TENANT: Final = UUID(int=7)
_HMAC_SECRET: Final = b"0123456789abcdef0123456789abcdef"


def contract_text(name: str, origin: str, /, **changes: Any) -> str:
    """Return a contract of the catalog, or of this folder, at `origin`, as YAML.

    `changes` are laid over the document, member by member.
    """
    return yaml.safe_dump(_at(name, origin, changes), sort_keys=False)


def stripe_contract_text(origin: str, name: str = "stripe-charge", /, **changes: Any) -> str:
    """Return a contract of Stripe's for stripe-stateful-mock, as YAML.

    The mock sends a stored answer with the type text/html, as Stripe does not. What the body has to
    satisfy is the stronger proof, and stays.
    """
    document = _at(name, origin, changes)
    for rule in document["adapter"]["answers"]["success"]:
        assert rule["body_schema"], "without its type, the body alone makes the answer a success"
        rule.pop("content_type", None)
    return yaml.safe_dump(document, sort_keys=False)


def _at(name: str, origin: str, changes: dict[str, Any]) -> dict[str, Any]:
    own = HERE / "contracts" / f"{name}.yaml"
    text = own.read_text() if own.exists() else catalog_texts()[name]
    declared = origin_of(yaml.safe_load(text)["adapter"]["url"])
    document: dict[str, Any] = merged(yaml.safe_load(text.replace(declared, origin)), changes)
    return document


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect at a target, by the HTTP adapter alone: what a run would ask and be told."""

    document: ContractDocument
    key: str
    arguments: JsonValue

    @classmethod
    def of(cls, contract: str, operation_key: str, arguments: JsonValue) -> Effect:
        """Bind arguments to a contract (its YAML), with the downstream key of the broker."""
        document = ContractDocument.parse_yaml(contract)
        document.check_arguments(arguments)
        key = downstream_key(_HMAC_SECRET, _TENANT, operation_key, document.key_format)
        return cls(document, key, arguments)

    async def send(self, ordinal: int = 1) -> Answer:
        """Render the request and send it, once."""
        adapter = _adapter()
        call = DispatchCall(
            effect_id=UUID(int=1),
            tenant_id=_TENANT,
            attempt_id=UUID(int=ordinal),
            ordinal=ordinal,
            downstream_key=self.key,
            wire=adapter.render(self.document, self.arguments, self.key),
            document=self.document,
            budget=budget(10.0),
            reach=ignore,
        )
        return await adapter.dispatch(call)

    async def ask(self) -> Finding:
        """Probe, once."""
        call = ProbeCall(
            effect_id=UUID(int=1),
            tenant_id=_TENANT,
            downstream_key=self.key,
            arguments=self.arguments,
            document=self.document,
            operation=None,
            budget=budget(10.0),
            reach=ignore,
        )
        return await _adapter().probe(call)


def _adapter() -> HttpAdapter:
    return HttpAdapter(SecretReferences("EFFECT_BROKER_SECRET_", None))
