"""The scripted model: answers without a network and without a key, the same each time.

Its answer follows from how many replies are in the conversation, so a restarted run goes on where
the journal ends. `reworded` is the same model on another day: it plans the same task in other words
and in another order, which must change nothing of what is decided already.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from effect_broker.proof.agent.words import Call, Message, Reply, Tool

TASK: Final = (
    "Order 42 was paid on the wrong account. Charge 12.00 EUR for order 42, pay back 9.00 EUR for "
    "order 41, and pay the courier of order 42 3.00 EUR."
)


class ScriptedProvider:
    """A model that gives these replies, one after the other, and then is done."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self._replies = tuple(replies)

    async def decide(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Reply:
        """Return the reply that is next in this conversation."""
        said = sum(1 for message in messages if message["role"] == "assistant")
        return self._replies[said] if said < len(self._replies) else Reply(text="Done.")


def demo_script(*, reworded: bool = False) -> list[Reply]:
    """Return the replies of the demo: a plan of three calls, and then what a bad model does.

    In its second reply it asks for the payment with an unknown outcome again, in other words, and
    for a charge under a key of its own.
    """
    plan = [
        call("a", "charge_card", order="42", amount=1200, currency="eur"),
        call("b", "refund_payment", order="41", amount=900, currency="eur"),
        call("c", "pay_courier", order="42", amount=300, currency="eur"),
    ]
    again = [
        call("d", "pay_courier", order="42, again", amount=300, currency="eur"),
        call(
            "e", "charge_card", order="42", amount=1200, currency="eur", operation_key="my-own-key"
        ),
    ]
    if reworded:
        return [
            Reply(text="Let me begin with the courier.", calls=tuple(reversed(plan))),
            Reply(text="The courier got nothing, I think.", calls=tuple(again)),
            Reply(text="One payment has to be looked at by a person."),
        ]
    return [
        Reply(text="Three payments are to be made.", calls=tuple(plan)),
        Reply(text="The courier's payment failed; once more.", calls=tuple(again)),
        Reply(text="Two are done; a person has to look at the courier's payment."),
    ]


def call(call_id: str, tool: str, **arguments: Any) -> Call:
    """Return a call as a model would write it."""
    return Call(call_id=call_id, tool=tool, arguments=json.dumps(arguments))
