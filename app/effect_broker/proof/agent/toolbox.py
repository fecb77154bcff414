"""The tools of the demo's agent, and the contracts behind them.

Three payments, one for each way in which a target can help or not. The model sees three names and
the same parameters; the safety class is in the contract, which it never sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from effect_broker.proof.agent.words import Tool
from effect_broker.proof.contracts import tuned
from effect_broker.proof.target.modes import ModeName
from effect_contracts.document import ContractDocument

_PAYMENT: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "order": {"type": "string", "minLength": 1, "maxLength": 100},
        "amount": {"type": "integer", "minimum": 1, "maximum": 100_000, "description": "in cents"},
        "currency": {"type": "string", "pattern": "^[a-z]{3}$", "description": "such as eur"},
    },
    "required": ["order", "amount", "currency"],
    "additionalProperties": False,
}

TOOLS: Final = (
    Tool("charge_card", "proof.agent_charge", "Charge the card of an order.", _PAYMENT),
    Tool("refund_payment", "proof.agent_refund", "Pay an order back.", _PAYMENT),
    Tool("pay_courier", "proof.agent_payout", "Pay the courier of an order.", _PAYMENT),
)

KINDS: Final[Mapping[str, tuple[str, str, ModeName]]] = {
    "charge_card": ("agent_charge", "demo-charge-idempotent", "dedupe"),
    "refund_payment": ("agent_refund", "demo-charge-reconcilable", "lookup"),
    "pay_courier": ("agent_payout", "demo-charge-unsafe", "neither"),
}
"""Tool, to the target's kind of object, the contract of the catalog, and the mode of the target."""


def contracts(origin: str) -> list[ContractDocument]:
    """Return the contracts of the tools at a target."""
    return [tuned(document, origin, kind) for kind, document, _ in KINDS.values()]
