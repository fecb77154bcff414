"""`effect-broker subscriptions`, and what `doctor` says of them."""

from __future__ import annotations

from uuid import uuid4

import psycopg

from cli.commands import Cli
from postgres import Database


def test_subscriptions_are_made_listed_paused_resumed_and_ended(
    broker: Cli, database: Database
) -> None:
    broker("tenants", "create", "acme")
    assert "there is no subscription" in broker("subscriptions", "list").out
    made = broker("subscriptions", "create", "https://hooks.acme.example/x",
                  "--state", "succeeded", "--json").json  # fmt: skip
    assert made["secret"].startswith("whsec_")
    (listed,) = broker("subscriptions", "list", "--json").json
    assert listed == {name: value for name, value in made.items() if name != "secret"}
    subscription_id = made["subscription_id"]
    assert "is paused" in broker("subscriptions", "pause", subscription_id).out
    assert "paused_by_person" in broker("subscriptions", "list").out
    found = {f["check"]: f for f in broker("doctor", "--json").json["findings"]}
    assert found["subscriptions"]["level"] == "warn"
    assert subscription_id in found["subscriptions"]["text"]
    assert "goes on" in broker("subscriptions", "resume", subscription_id).out
    replaced = broker("subscriptions", "replace-secret", subscription_id)
    assert "until then both sign" in replaced.out
    assert made["secret"] not in replaced.out
    at_once = broker("subscriptions", "replace-secret", subscription_id, "--overlap", "0", "--json")
    assert at_once.json["old_secret_until"] is None
    effect_id = uuid4()
    with psycopg.connect(database.superuser_url, autocommit=True) as superuser:
        superuser.execute(
            "INSERT INTO effect_broker.event_deliveries SELECT subscription_id, tenant_id, %s, 1,"
            " now(), 3, now(), NULL, now(), 'refused', 400 FROM effect_broker.event_subscriptions",
            [effect_id],
        )
    assert "pruned" in broker("subscriptions", "dead-letters", subscription_id).out
    event = f"{effect_id}.1.00000000"
    again = broker("subscriptions", "redeliver", subscription_id, "--event", event, "--json")
    assert again.json == {"redelivered": 1}
    assert broker("subscriptions", "redeliver", subscription_id, "--all").code == 0
    assert "is gone" in broker("subscriptions", "delete", subscription_id).out
    assert "no subscription" in broker("subscriptions", "delete", subscription_id).refused()


def test_what_cannot_be_is_refused_with_what_to_do(broker: Cli) -> None:
    broker("tenants", "create", "acme")
    refused = broker("subscriptions", "create", "https://10.0.0.1/x").refused(2)
    assert "EFFECT_BROKER_EVENT_NETWORKS" in refused
    url = "https://hooks.acme.example/x"
    assert "--after" in broker("subscriptions", "create", url, "--after", "x").refused(2)
    assert "no subscription id" in broker("subscriptions", "resume", "x").refused(2)
    known = str(uuid4())
    again = ("subscriptions", "replace-secret", known)
    assert "no subscription" in broker(*again).refused()
    assert "at most 30d" in broker(*again, "--overlap", "31d").refused(2)
    # A receiver on this machine will do, as for the workers of `up`.
    assert broker("subscriptions", "create", "http://127.0.0.1:9000/").code == 0
    assert "say which" in broker("subscriptions", "redeliver", known).refused(2)
    assert "no event id" in broker("subscriptions", "redeliver", known, "--event", "x").refused(2)
    assert "no such" in broker("subscriptions", "redeliver", known, "--all").refused()
