"""Whether a delivery is believed: the published test vectors, and every way to miss them."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effect_contracts.webhook_settings import (
    GithubScheme,
    HmacScheme,
    StandardWebhooksScheme,
    StripeScheme,
    WebhookScheme,
)
from effect_contracts.webhook_signature import (
    Authentic,
    HeaderFields,
    Refusal,
    SecretMalformed,
    claimed_at,
    signing_key,
    verify,
)

STRIPE = StripeScheme(kind="stripe")
GITHUB = GithubScheme(kind="github")
STANDARD = StandardWebhooksScheme(kind="standard_webhooks")
SLACK_LIKE = HmacScheme(
    kind="hmac",
    header="X-Signature",
    prefix="v0=",
    algorithm="sha512",
    content="v0:{timestamp}:{body}",
    timestamp_header="X-Time",
)
SHOP_LIKE = HmacScheme(kind="hmac", header="X-Shop-Hmac", encoding="base64", secret_encoding="hex")

# GitHub's documentation of its webhooks: "Testing the webhook payload validation".
GITHUB_SECRET = "It's a Secret to Everybody"
GITHUB_BODY = b"Hello, World!"
GITHUB_SIGNATURE = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"

# The test suite of the Standard Webhooks libraries.
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
STANDARD_BODY = b'{"test": 2432232314}'
STANDARD_AT = 1614265330
STANDARD_SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
STANDARD_HEADERS = [
    ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
    ("webhook-timestamp", str(STANDARD_AT)),
    ("webhook-signature", STANDARD_SIGNATURE),
]

# Stripe publishes the algorithm and no vector. These were made with the openssl command.
STRIPE_SECRET = "whsec_test_secret"
STRIPE_BODY = '{"id":"evt_1","name":"Zoë ☃"}'.encode()
STRIPE_V1 = "5d45551573cba27ae0f6a083f29ee14974d9da93f5faea22afd3a47bb9f6561d"
STRIPE_HEADERS = [("Stripe-Signature", f"t={STANDARD_AT},v1={STRIPE_V1}")]
SLACK_BODY = '{"a":"é"}'.encode()
SLACK_V0 = (
    "24c171fc7348f514216ec2ac1e979b5e27c62d39c7ee3e14ed818aead1746e7f"
    "4cb845cc7d8e75be7b809e59bdb29a1a21a2cf17836053f32e48fea83cfa3f2d"
)
SHOP_BODY = b'{"a":1}'
SHOP_SIGNATURE = "hj4/SbAlBKFcG2whBDHt+7CnWPHs3PocZ7Zmhkm+PcQ="

Vector = tuple[WebhookScheme, str, HeaderFields, bytes, int]
VECTORS: dict[str, Vector] = {
    "stripe": (STRIPE, STRIPE_SECRET, STRIPE_HEADERS, STRIPE_BODY, STANDARD_AT),
    "github": (GITHUB, GITHUB_SECRET, [("X-Hub-Signature-256", GITHUB_SIGNATURE)], GITHUB_BODY, 0),
    "standard": (STANDARD, STANDARD_SECRET, STANDARD_HEADERS, STANDARD_BODY, STANDARD_AT),
    "slack_like": (
        SLACK_LIKE,
        "hello",
        [("x-signature", f"v0={SLACK_V0}"), ("X-TIME", "1531420618")],
        SLACK_BODY,
        1531420618,
    ),
    "shop_like": (SHOP_LIKE, "00ff10", [("X-Shop-Hmac", SHOP_SIGNATURE)], SHOP_BODY, 0),
}
TIMED = ("stripe", "standard", "slack_like")


def judged(
    vector: Vector,
    *,
    secrets: tuple[str, ...] | None = None,
    headers: HeaderFields | None = None,
    body: bytes | None = None,
    later_seconds: float = 0.0,
) -> Authentic | Refusal:
    scheme, secret, own_headers, own_body, at = vector
    keys = [signing_key(scheme, text) for text in secrets or (secret,)]
    return verify(
        scheme,
        keys,
        own_headers if headers is None else headers,
        own_body if body is None else body,
        at + later_seconds,
    )


@pytest.mark.parametrize("name", VECTORS)
def test_the_published_vector_is_believed(name: str) -> None:
    assert isinstance(judged(VECTORS[name]), Authentic)


def test_the_signed_id_of_a_standard_webhook_is_told() -> None:
    assert judged(VECTORS["standard"]) == Authentic("msg_p5jXN8AQM9LWM0D4loKWxJek")
    assert judged(VECTORS["stripe"]) == Authentic(None)


@pytest.mark.parametrize("name", VECTORS)
def test_another_body_is_not_believed(name: str) -> None:
    body = VECTORS[name][3]
    for changed in (body + b" ", body[:-1], b"", body.replace(b"e", b"E", 1) + b"\n"):
        assert judged(VECTORS[name], body=changed) is Refusal.SIGNATURE_WRONG


@pytest.mark.parametrize("name", VECTORS)
def test_another_secret_is_not_believed_and_one_of_several_is_enough(name: str) -> None:
    own = VECTORS[name][1]
    other = {"standard": "whsec_AAAA", "shop_like": "abcd"}.get(name, "another")
    assert judged(VECTORS[name], secrets=(other,)) is Refusal.SIGNATURE_WRONG
    assert isinstance(judged(VECTORS[name], secrets=(other, own)), Authentic)
    assert isinstance(judged(VECTORS[name], secrets=(own, other)), Authentic)


def test_no_key_believes_nothing() -> None:
    scheme, _, headers, body, at = VECTORS["github"]
    assert verify(scheme, [], headers, body, at) is Refusal.SIGNATURE_WRONG


@pytest.mark.parametrize("name", TIMED)
def test_a_replay_outside_the_tolerance_is_not_believed_on_either_side(name: str) -> None:
    for inside in (300.0, -300.0, 0.0):
        assert isinstance(judged(VECTORS[name], later_seconds=inside), Authentic)
    for outside in (300.5, -300.5, 1e9):
        assert judged(VECTORS[name], later_seconds=outside) is Refusal.TIME_OUTSIDE_TOLERANCE


@pytest.mark.parametrize("name", TIMED)
def test_another_time_is_not_what_was_signed(name: str) -> None:
    scheme, _, headers, _, at = VECTORS[name]
    moved = [(n, v.replace(str(at), str(at + 60))) for n, v in headers]
    assert moved != list(headers)
    assert judged(VECTORS[name], headers=moved) is Refusal.SIGNATURE_WRONG
    assert scheme is VECTORS[name][0]


@pytest.mark.parametrize("name", VECTORS)
def test_a_header_that_is_missing_or_repeated_is_refused(name: str) -> None:
    headers = list(VECTORS[name][2])
    for index, (header, value) in enumerate(headers):
        without = headers[:index] + headers[index + 1 :]
        assert judged(VECTORS[name], headers=without) is Refusal.HEADER_MISSING
        for again in (value, "x"):
            twice = [*headers, (header.swapcase(), again)]
            assert judged(VECTORS[name], headers=twice) is Refusal.HEADER_REPEATED


def test_several_signatures_in_one_header_are_each_tried() -> None:
    zero = "0" * 64
    header = f"t={STANDARD_AT},v1={zero},v1={STRIPE_V1},v0={zero}"
    assert isinstance(judged(VECTORS["stripe"], headers=[("stripe-signature", header)]), Authentic)
    # What a later version of the scheme adds is passed over, whatever its name.
    header = f"a=1,s,t={STANDARD_AT},u=2,v=3,v1={STRIPE_V1}"
    assert isinstance(judged(VECTORS["stripe"], headers=[("stripe-signature", header)]), Authentic)
    header = f"t={STANDARD_AT}," + f"v1={zero}," * 19 + f"v1={STRIPE_V1}"
    assert isinstance(judged(VECTORS["stripe"], headers=[("stripe-signature", header)]), Authentic)
    nothing = base64.b64encode(bytes(32)).decode()
    signatures = f"v1,{nothing} v1a,anything {STANDARD_SIGNATURE}"
    headers = [*STANDARD_HEADERS[:2], ("webhook-signature", signatures)]
    assert isinstance(judged(VECTORS["standard"], headers=headers), Authentic)


@pytest.mark.parametrize(
    ("name", "header", "value", "refusal"),
    [
        ("stripe", "Stripe-Signature", f"t={STANDARD_AT}", Refusal.HEADER_MALFORMED),
        ("stripe", "Stripe-Signature", f"v1={STRIPE_V1}", Refusal.HEADER_MALFORMED),
        ("stripe", "Stripe-Signature", f"t={STANDARD_AT},v0={STRIPE_V1}",
         Refusal.HEADER_MALFORMED),
        ("stripe", "Stripe-Signature", f"t={STANDARD_AT},v2={STRIPE_V1}",
         Refusal.HEADER_MALFORMED),
        ("stripe", "Stripe-Signature", f"t={STANDARD_AT},t=1,v1={STRIPE_V1}",
         Refusal.HEADER_MALFORMED),
        ("stripe", "Stripe-Signature", f"t={STANDARD_AT},v1=zz", Refusal.HEADER_MALFORMED),
        ("stripe", "Stripe-Signature", f"t={STANDARD_AT}," + f"v1={STRIPE_V1}," * 21,
         Refusal.HEADER_MALFORMED),
        ("stripe", "Stripe-Signature", f"t={STANDARD_AT},v1={STRIPE_V1[:-2]}",
         Refusal.SIGNATURE_WRONG),
        ("stripe", "Stripe-Signature", "\u0661", Refusal.HEADER_MALFORMED),
        ("github", "X-Hub-Signature-256", GITHUB_SIGNATURE[7:], Refusal.HEADER_MALFORMED),
        ("github", "X-Hub-Signature-256", "sha1=" + GITHUB_SIGNATURE[7:],
         Refusal.HEADER_MALFORMED),
        ("github", "X-Hub-Signature-256", "sha256=", Refusal.HEADER_MALFORMED),
        ("github", "X-Hub-Signature-256", GITHUB_SIGNATURE[:-1], Refusal.HEADER_MALFORMED),
        ("standard", "webhook-signature", "v1,***", Refusal.HEADER_MALFORMED),
        ("standard", "webhook-signature", STANDARD_SIGNATURE[3:], Refusal.HEADER_MALFORMED),
        ("standard", "webhook-signature", "v2" + STANDARD_SIGNATURE[2:],
         Refusal.HEADER_MALFORMED),
        ("standard", "webhook-id", "a b", Refusal.HEADER_MALFORMED),
        ("standard", "webhook-id", "", Refusal.HEADER_MALFORMED),
        ("standard", "webhook-timestamp", "1614265330.0", Refusal.SIGNATURE_WRONG),
        ("shop_like", "X-Shop-Hmac", "%%%", Refusal.HEADER_MALFORMED),
    ],
)  # fmt: skip
def test_a_header_that_is_not_as_the_scheme_writes_it_is_refused(
    name: str, header: str, value: str, refusal: Refusal
) -> None:
    headers = [(n, value if n == header else v) for n, v in VECTORS[name][2]]
    assert judged(VECTORS[name], headers=headers) is refusal


@pytest.mark.parametrize("time", ["", "-1", "1e9", "161426533\u0660", "1614265330x", "9" * 30])
def test_a_signed_time_that_is_no_number_of_seconds_is_refused(time: str) -> None:
    signed = f"msg.{time}.".encode() + STANDARD_BODY
    key = signing_key(STANDARD, STANDARD_SECRET)
    made = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    headers = [
        ("webhook-id", "msg"), ("webhook-timestamp", time), ("webhook-signature", f"v1,{made}"),
    ]  # fmt: skip
    refusal = verify(STANDARD, [key], headers, STANDARD_BODY, STANDARD_AT)
    assert refusal is Refusal.HEADER_MALFORMED


def test_the_headers_of_a_standard_webhook_may_bear_another_name() -> None:
    scheme = StandardWebhooksScheme(kind="standard_webhooks", headers="svix")
    headers = [(name.replace("webhook", "svix"), value) for name, value in STANDARD_HEADERS]
    vector = (scheme, STANDARD_SECRET, headers, STANDARD_BODY, STANDARD_AT)
    assert isinstance(judged(vector), Authentic)
    assert judged(vector, headers=STANDARD_HEADERS) is Refusal.HEADER_MISSING


@pytest.mark.parametrize(
    ("scheme", "secret"),
    [(STANDARD, "whsec_***"), (STANDARD, "whsec_"), (SHOP_LIKE, "xyz"), (SHOP_LIKE, "abc")],
)
def test_a_secret_that_is_written_otherwise_is_told_without_it(
    scheme: WebhookScheme, secret: str
) -> None:
    with pytest.raises(SecretMalformed) as refused:
        signing_key(scheme, secret)
    assert secret not in str(refused.value)


@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=60)), max_size=4), st.binary())
def test_whatever_comes_is_refused_and_never_an_error(
    noise: list[tuple[str, str]], body: bytes
) -> None:
    for scheme, secret, headers, _, at in VECTORS.values():
        names = [name for name, _ in headers]
        odd = [(names[i] if i < len(names) else n, v) for i, (n, v) in enumerate(noise)]
        assert isinstance(verify(scheme, [signing_key(scheme, secret)], odd, body, at), Refusal)


@pytest.mark.parametrize("name", VECTORS)
def test_the_time_that_a_delivery_claims_is_read_whether_it_is_believed_or_not(name: str) -> None:
    scheme, _, headers, _, at = VECTORS[name]
    assert claimed_at(scheme, headers) == (at if name in TIMED else None)
    assert claimed_at(scheme, []) is None
    assert claimed_at(scheme, [(header, "x") for header, _ in headers]) is None
