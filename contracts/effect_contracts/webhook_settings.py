"""The settings of signed provider webhooks: whom to believe, and which effect a delivery is about.

This file owns the shape of `webhook:` in a contract document and what each part means. A webhook
is the target's own word that reaches us unasked. It can prove a commit and nothing else; a notice
of failure is linked to the effect and clears nothing.

*Is it the target who speaks?* `scheme` and `secrets`. Every scheme is an HMAC over the raw bytes of
the body; what the signature does not cover (a header with the event's type, for instance) is
not read. *What does it say?* `committed` and `failed`. *Of which effect?* `key_match`, `agree` and
`extraction`, in the words of a probe.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from effect_contracts.expressions import (
    Expression,
    HeaderName,
    HeaderPrefix,
    Pointer,
    PositiveSeconds,
    SecretReference,
)
from effect_contracts.http_settings import Extraction, FieldKey
from effect_contracts.section import Section

# A key that is being replaced and its successor, with room to spare: each is tried.
SECRETS_MAX: Final = 5
# The default of the published schemes that have a time (Stripe's, Standard Webhooks).
TOLERANCE_SECONDS_DEFAULT: Final = 300.0

Tolerance = Annotated[PositiveSeconds, Field(le=86_400)]

TIMESTAMP_PLACE: Final = "{timestamp}"
BODY_PLACE: Final = "{body}"


class StripeScheme(Section):
    """`Stripe-Signature: t=<seconds>,v1=<hex>[,v1=<hex>]` over `<t>.<body>`."""

    kind: Literal["stripe"]
    tolerance_seconds: Tolerance = TOLERANCE_SECONDS_DEFAULT


class GithubScheme(Section):
    """`X-Hub-Signature-256: sha256=<hex>` over the body. It has no time, so a delivery that is
    sent again is known by its id or its body only."""

    kind: Literal["github"]


class StandardWebhooksScheme(Section):
    """`<headers>-id`, `<headers>-timestamp` and `<headers>-signature: v1,<base64>[ v1,<base64>]`
    over `<id>.<timestamp>.<body>`. The secret is `whsec_` and base64.

    Attributes:
        headers: how the names of the headers begin; some senders still say `svix`.
    """

    kind: Literal["standard_webhooks"]
    headers: HeaderName = "webhook"
    tolerance_seconds: Tolerance = TOLERANCE_SECONDS_DEFAULT


class HmacScheme(Section):
    """One signature in one header: any other HMAC scheme.

    Attributes:
        header: where the signature stands, after `prefix`.
        encoding: how it is written.
        algorithm: of the HMAC.
        secret_encoding: how the key is written in the secret.
        content: what is signed: `{body}`, and where the sender has a time `{timestamp}` before it.
        timestamp_header: where that time stands, in seconds since 1970.
        tolerance_seconds: how far that time may be from ours.
    """

    kind: Literal["hmac"]
    header: HeaderName
    prefix: HeaderPrefix = ""
    encoding: Literal["hex", "base64"] = "hex"
    algorithm: Literal["sha256", "sha512"] = "sha256"
    secret_encoding: Literal["text", "hex", "base64"] = "text"
    content: Annotated[str, Field(max_length=128, pattern=r"^[\x20-\x7e]*$")] = BODY_PLACE
    timestamp_header: HeaderName | None = None
    tolerance_seconds: Tolerance = TOLERANCE_SECONDS_DEFAULT


WebhookScheme = Annotated[
    StripeScheme | GithubScheme | StandardWebhooksScheme | HmacScheme,
    Field(discriminator="kind"),
]


class WebhookSettings(Section):
    """How deliveries of the target's webhook are believed and read; see the head of this file.

    Attributes:
        secrets: references, tried in order; several while a secret is being replaced. They are
            resolved by the API's process, below a prefix of its own.
        delivery_id: JMESPath to the sender's id of the delivery; the signed id of
            `standard_webhooks`, else the digest of the body, without it.
        committed: JMESPath that is `true`, exactly, in deliveries that say the target did it.
        failed: the same for those that say it did not.
        key_match: where our key stands; without it a delivery is linked by its id and settles
            nothing.
        agree: argument pointer to JMESPath in the body: values that must be equal, as in a probe.
        extraction: what is taken from the body, as in a probe.
    """

    scheme: WebhookScheme
    secrets: Annotated[tuple[SecretReference, ...], Field(min_length=1, max_length=SECRETS_MAX)]
    delivery_id: Expression | None = None
    committed: Expression | None = None
    failed: Expression | None = None
    key_match: FieldKey | None = None
    agree: Annotated[dict[Pointer, Expression], Field(max_length=32)] = Field(default_factory=dict)
    extraction: Extraction = Extraction()
