"""Each form of the console, end to end: what it does, and what it says when it does not."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI

from api.deployment import CHARGE, Deployment, charge, in_doubt, versioned
from console.browsing import Operator, Page
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.pool import Pool
from effect_contracts.facts import Outcome
from unresolved.scenes import Scenes, quick


async def doubtful(deployment: Deployment, application: FastAPI, key: str = "order-1") -> str:
    async with deployment.client(application) as api:
        return await in_doubt(api, deployment, key)


FOUND = {"conclusion": "committed", "reason": "It is in the list.", "reference": "https://t/ch_1"}


# Resolving ----------------------------------------------------------------------------------------


async def test_what_a_person_knows_is_recorded_with_its_evidence(
    deployment: Deployment, application: FastAPI, operator: Operator
) -> None:
    effect_id = await doubtful(deployment, application)
    shown = await operator.page(f"/console/effects/{effect_id}")
    form = shown.form("/resolve")
    after = await operator.sent(form, **FOUND, external_id="ch_1")
    assert "Recorded. The page shows the effect as it is now." in after.words
    assert "It happened" in after.words
    assert f"operator {str(operator.key_id)[:8]} (you)" in after.words
    assert "It is in the list." in after.words
    ((content, actor),) = deployment.execute(
        "SELECT content::jsonb, actor FROM effect_broker.effect_resolutions"
    )
    assert actor == f"operator:{operator.key_id}"
    assert content["external_id"] == "ch_1"
    assert content["evidence"][0]["kind"] == "dashboard"
    assert content["evidence"][0]["observed_at"].endswith("+00:00")
    # The word is shown once.
    again = await operator.page(f"/console/effects/{effect_id}")
    assert "Recorded. The page" not in again.words
    assert [form.action for form in again.forms if form.action.endswith("/resolve")] == []


async def test_a_double_click_is_one_decision(
    deployment: Deployment, application: FastAPI, operator: Operator
) -> None:
    effect_id = await doubtful(deployment, application)
    form = (await operator.page(f"/console/effects/{effect_id}")).form("/resolve")
    first, second = await asyncio.gather(operator.send(form, **FOUND), operator.send(form, **FOUND))
    assert (first.status_code, second.status_code) == (303, 303)
    assert deployment.count("effect_resolutions") == 1
    third = await operator.sent(form, **FOUND)
    assert "This was recorded already." in third.words
    assert deployment.count("effect_resolutions") == 1


async def test_the_same_form_with_other_words_changes_nothing(
    deployment: Deployment, application: FastAPI, operator: Operator
) -> None:
    effect_id = await doubtful(deployment, application)
    form = (await operator.page(f"/console/effects/{effect_id}")).form("/resolve")
    await operator.sent(form, **FOUND)
    answer = await operator.send(form, **(FOUND | {"reason": "other words"}))
    assert answer.status_code == 409
    assert "This form was sent before, with other words." in Page(answer.text).words
    assert deployment.count("effect_resolutions") == 1


async def test_a_decision_on_an_older_version_is_shown_the_newer_one_and_keeps_the_words(
    deployment: Deployment, application: FastAPI, operator: Operator
) -> None:
    effect_id = await doubtful(deployment, application)
    form = (await operator.page(f"/console/effects/{effect_id}")).form("/resolve")
    deployment.execute(
        "SET session_replication_role = replica;"
        " UPDATE effect_broker.effect_intents SET version = version + 1"
    )
    answer = await operator.send(form, **FOUND)
    page = Page(answer.text)
    assert answer.status_code == 409
    assert "It has changed while you were looking. Nothing was recorded." in page.words
    anew = page.form("/resolve")
    assert anew.fields["reason"] == FOUND["reason"]
    assert anew.fields["expected_version"] == "3"
    # It has to be concluded anew: nothing is chosen, and it is a decision of its own.
    assert "conclusion" not in anew.fields
    assert anew.fields["decision_id"] != form.fields["decision_id"]
    assert deployment.count("effect_resolutions") == 0


async def test_only_what_is_permitted_can_be_chosen_and_the_rest_says_why(
    operator: Operator, scenes: Scenes
) -> None:
    unsafe = await scenes.sent("unsafe", quick("unsafe"), Outcome.AMBIGUOUS)
    page = await operator.page(f"/console/effects/{unsafe}")
    assert page.form("/resolve").disabled == set()
    assert "an unsafe effect is never sent twice" in page.words
    conflict = await scenes.sent("conflict", quick("idempotent"), Outcome.KEY_CONFLICT)
    page = await operator.page(f"/console/effects/{conflict}")
    assert "Not possible. Under this contract it would change nothing" in page.words
    assert page.form("/resolve").disabled == {"not_committed"}
    moving = await scenes.sent("looked-up", quick("reconcilable"), Outcome.AMBIGUOUS)
    page = await operator.page(f"/console/effects/{moving}")
    assert "Not possible. Too early." in page.words
    assert page.form("/resolve").disabled == {"not_committed"}
    prepared = await scenes.submit("prepared", quick("idempotent"))
    page = await operator.page(f"/console/effects/{prepared}")
    assert "The broker is still finding out by itself" in page.words
    assert [form.action for form in page.forms if form.action.endswith("/resolve")] == []


async def test_a_look_that_was_too_early_says_from_when_on_one_counts(
    deployment: Deployment, application: FastAPI, operator: Operator
) -> None:
    effect_id = await doubtful(deployment, application)
    form = (await operator.page(f"/console/effects/{effect_id}")).form("/resolve")
    early = FOUND | {"conclusion": "not_committed", "observed_at": "2000-01-01 00:00:00"}
    answer = await operator.send(form, **early)
    page = Page(answer.text)
    assert answer.status_code == 409
    assert "You looked too early. Nothing was recorded." in page.words
    assert "beginning after 20" in page.words
    assert page.form("/resolve").fields["conclusion"] == "not_committed"
    after = await operator.sent(page.form("/resolve"), observed_at=form.fields["observed_at"])
    assert "Recorded." in after.words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"conclusion": ""}, "“What do you know?” is missing"),
        ({"conclusion": "retry"}, "“What do you know?” is missing"),
        ({"reason": "  "}, "“Why” is missing"),
        ({"reference": ""}, "“Where it can be seen again” is missing"),
        ({"observed_at": "yesterday"}, "Write it as 2026-11-30 03:12:05, in UTC."),
        ({"observed_at": "2999-01-01 00:00:00"}, "That moment has not come yet."),
        ({"observed_at": "2026-13-01 00:00:00"}, "Write it as 2026-11-30 03:12:05, in UTC."),
        ({"conclusion": "failed", "external_id": "ch_1"}, "Leave it empty unless it happened"),
        ({"external_id": "ch\u202e1"}, "it holds printable characters only"),
        ({"kind": "<b>"}, "“What you looked at” is missing or cannot be used"),
    ],
)
async def test_what_is_missing_is_named_at_the_form_and_nothing_is_lost(
    deployment: Deployment, application: FastAPI, operator: Operator,
    changes: dict[str, str], words: str,
) -> None:  # fmt: skip
    effect_id = await doubtful(deployment, application)
    form = (await operator.page(f"/console/effects/{effect_id}")).form("/resolve")
    answer = await operator.send(form, **(FOUND | changes))
    page = Page(answer.text)
    assert (answer.status_code, words in page.words) == (422, True), page.words
    kept = page.form("/resolve").fields
    assert kept["decision_id"] == form.fields["decision_id"]
    assert kept["reference"] == (FOUND | changes)["reference"]
    assert deployment.count("effect_resolutions") == 0


async def test_a_form_whose_hidden_fields_were_changed_is_refused(
    deployment: Deployment, application: FastAPI, operator: Operator
) -> None:
    effect_id = await doubtful(deployment, application)
    form = (await operator.page(f"/console/effects/{effect_id}")).form("/resolve")
    for changes in ({"expected_version": "x"}, {"decision_id": "a b"}, {"expected_version": ""}):
        answer = await operator.send(form, **(FOUND | changes))
        assert answer.status_code == 422
    assert deployment.count("effect_resolutions") == 0


async def test_an_outage_offers_the_same_form_again_which_counts_once(
    deployment: Deployment, application: FastAPI, operator: Operator
) -> None:
    effect_id = await doubtful(deployment, application)
    form = (await operator.page(f"/console/effects/{effect_id}")).form("/resolve")
    deployment.execute("ALTER TABLE effect_broker.effect_resolutions RENAME TO away")
    answer = await operator.send(form, **(FOUND | {"reason": "two\nlines <b>"}))
    deployment.execute("ALTER TABLE effect_broker.away RENAME TO effect_resolutions")
    page = Page(answer.text)
    assert (answer.status_code, "not known whether this was recorded" in page.words) == (503, True)
    again = page.form("/resolve")
    assert again.fields == form.fields | FOUND | {"reason": "two\nlines <b>"}
    assert "Recorded." in (await operator.sent(again)).words
    assert deployment.count("effect_resolutions") == 1


async def test_a_look_now_can_be_asked_for(operator: Operator, scenes: Scenes) -> None:
    moving = await scenes.sent("looked-up", quick("reconcilable"), Outcome.AMBIGUOUS)
    form = (await operator.page(f"/console/effects/{moving}")).form("/look")
    assert "look" in (await operator.sent(form)).words
    settled = await scenes.sent("settled", quick("idempotent"), Outcome.COMMITTED)
    page = await operator.page(f"/console/effects/{settled}")
    assert [form.action for form in page.forms if form.action.endswith("/look")] == []


# Two persons --------------------------------------------------------------------------------------


async def test_what_one_proposes_another_confirms(
    deployment: Deployment, application: FastAPI, admin_pool: Pool,
    operator: Operator, second: Operator,
) -> None:  # fmt: skip
    changes = {"oversight": {"second_person": True}}
    await Catalogue(admin_pool).apply(versioned(CHARGE, "two-persons", **changes))
    effect_id = await doubtful(deployment, application)
    path = f"/console/effects/{effect_id}"
    form = (await operator.page(path)).form("/resolve")
    proposed = await operator.sent(form, **FOUND)
    assert "It counts once another operator has confirmed it." in proposed.words
    assert "You said it yourself. Another operator has to confirm it" in proposed.words
    assert [form for form in proposed.forms if form.action.endswith("/confirm")] == []
    listed = await second.page("/console/approvals")
    assert "It is in the list." in listed.words
    confirmation = (await second.page(path)).form("/confirm")
    # The first person, with the second one's form.
    own = await operator.client.post(
        f"{path}/confirm",
        data=confirmation.fields | {"token": form.fields["token"]},
        headers={"Origin": "http://broker"},
    )
    assert (own.status_code, "This takes another person" in Page(own.text).words) == (403, True)
    assert "Confirmed." in (await second.sent(confirmation)).words
    assert "recorded already" in (await second.sent(confirmation)).words
    assert "Nothing waits for a second person." in (await second.page("/console/approvals")).words
    assert deployment.count("effect_resolutions") == 1


async def test_what_waits_for_an_approval_is_approved_by_its_hash_or_denied(
    deployment: Deployment, application: FastAPI, admin_pool: Pool, operator: Operator
) -> None:
    changes = {"oversight": {"approval_valid_seconds": 60.0}}
    await Catalogue(admin_pool).apply(versioned(CHARGE, "approving", **changes))
    made = []
    async with deployment.client(application) as api:
        for key in ("order-1", "order-2"):
            made.append((await api.post("/v1/effects", json=charge(key))).json())
            await deployment.settle(made[-1]["effect_id"])
    listed = await operator.page("/console/approvals")
    assert ("order-1" in listed.words, "order-2" in listed.words) == (True, True)
    paths = [f"/console/effects/{one['effect_id']}" for one in made]
    page = await operator.page(paths[0])
    form = page.form("/judge")
    assert form.fields["request_hash"] == made[0]["request_hash"]
    assert made[0]["request_hash"] in page.words
    assert '"amount": 1200' in page.words
    forged = await operator.send(form, verdict="approve", reason="ok", request_hash="0" * 64)
    assert forged.status_code == 409
    assert "stands for another request" in Page(forged.text).words
    empty = await operator.send(form, verdict="approve", reason=" ")
    assert (empty.status_code, deployment.count("effect_approvals")) == (422, 0)
    approved = await operator.sent(form, verdict="approve", reason="as ordered")
    assert "Approved. It is sent as soon as a worker takes it up." in approved.words
    assert "as ordered" in approved.words
    assert (
        "recorded already"
        in (await operator.sent(form, verdict="approve", reason="as ordered")).words
    )
    denying = (await operator.page(paths[1])).form("/judge")
    denied = await operator.sent(denying, verdict="deny", reason="not ordered")
    assert "Denied. It is withdrawn and will not be sent." in denied.words
    assert "Nothing waits for an approval." in (await operator.page("/console/approvals")).words
    rows = deployment.execute("SELECT approved FROM effect_broker.effect_approvals ORDER BY 1")
    assert rows == [(False,), (True,)]


async def test_nobody_can_approve_what_they_have_submitted(
    deployment: Deployment, application: FastAPI, admin_pool: Pool, operator: Operator
) -> None:
    changes = {"oversight": {"approval_valid_seconds": 60.0}}
    await Catalogue(admin_pool).apply(versioned(CHARGE, "approving", **changes))
    headers = {"Authorization": f"Bearer {operator.api_key}"}
    async with deployment.client(application, None) as api:
        made = (await api.post("/v1/effects", json=charge(), headers=headers)).json()
    await deployment.settle(made["effect_id"])
    page = await operator.page(f"/console/effects/{made['effect_id']}")
    assert "You have submitted it yourself. Another operator has to approve it." in page.words
    approve = [a for tag, a in page.tags if tag == "button" and a.get("value") == "approve"]
    assert ["disabled" in attributes for attributes in approve] == [True]
    answer = await operator.send(page.form("/judge"), verdict="approve", reason="I may")
    assert (answer.status_code, deployment.count("effect_approvals")) == (403, 0)


# Alerts -------------------------------------------------------------------------------------------


async def test_an_alert_is_dealt_with_unless_another_one_came_meanwhile(
    deployment: Deployment, application: FastAPI, operator: Operator
) -> None:
    async with deployment.client(application) as api:
        effect_id = (await api.post("/v1/effects", json=charge())).json()["effect_id"]
        await api.post(f"/v1/effects/{effect_id}/cancel")

    def raised(alert: str) -> None:
        deployment.execute(
            "SET session_replication_role = replica;"
            f" UPDATE effect_broker.effect_intents SET alert = '{alert}'"
        )

    raised("late_contradiction")
    path = f"/console/effects/{effect_id}"
    form = (await operator.page(path)).form("/acknowledge")
    raised("duplicate_detected")
    refused = await operator.send(form, reason="refunded")
    assert refused.status_code == 409
    assert "It has another alert by now." in Page(refused.text).words
    assert deployment.count("effect_acknowledgements") == 0
    after = await operator.sent((await operator.page(path)).form("/acknowledge"), reason="refunded")
    assert "Recorded. The page shows the effect as it is now." in after.words
    assert [form.action for form in after.forms if form.action.endswith("/acknowledge")] == []
    assert deployment.execute(
        "SELECT alert, reason FROM effect_broker.effect_acknowledgements"
    ) == [("duplicate_detected", "refunded")]


# Holds --------------------------------------------------------------------------------------------


async def test_a_tool_is_paused_and_goes_on(deployment: Deployment, operator: Operator) -> None:
    form = (await operator.page("/console/holds?tool=demo.charge")).form("/holds")
    assert (form.fields["subject"], form.fields["tool"]) == ("tool", "demo.charge")
    held = await operator.sent(form, reason="double postings")
    assert "Paused. Nothing more is sent in this scope." in held.words
    assert "Paused: tool demo.charge of this tenant" in held.words
    assert "It was paused already." in (await operator.sent(form, reason="again")).words
    lift = held.form("/lift")
    bare = await operator.send(lift, reason=" ")
    assert (bare.status_code, "“Why” is missing" in Page(bare.text).words) == (422, True)
    lifted = await operator.sent(lift, reason="fixed")
    assert "Lifted. What it stopped goes on by itself." in lifted.words
    assert "Nothing is held." in lifted.words
    assert "It was lifted already." in (await operator.sent(lift, reason="fixed")).words
    ((placed_by, lifted_by, why),) = deployment.execute(
        "SELECT placed_by, lifted_by, lift_reason FROM effect_broker.holds"
    )
    assert (placed_by, lifted_by, why) == (*[f"operator:{operator.key_id}"] * 2, "fixed")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"subject": "tool", "tool": ""}, "is missing"),
        ({"subject": "tool", "tool": "no.such"}, "There is no contract of that name."),
        ({"subject": "contract", "name": "demo", "version": ""}, "is missing"),
        ({"subject": "contract", "name": "no", "version": "1"}, "There is no contract"),
        ({"subject": ""}, "is missing"),
        ({"subject": "all", "reason": ""}, "“Why” is missing"),
    ],
)
async def test_a_hold_that_would_stop_nothing_is_refused(
    deployment: Deployment, operator: Operator, fields: dict[str, str], words: str
) -> None:
    form = (await operator.page("/console/holds")).form("/holds")
    answer = await operator.send(form, **({"reason": "kept"} | fields))
    page = Page(answer.text)
    assert (answer.status_code, words in page.words) == (422, True), page.words
    assert page.form("/holds").fields["reason"] == ({"reason": "kept"} | fields)["reason"]
    assert deployment.count("holds") == 0


async def test_everything_and_one_contract_version_are_paused(
    deployment: Deployment, operator: Operator
) -> None:
    form = (await operator.page("/console/holds")).form("/holds")
    everything = await operator.sent(form, subject="all", reason="r")
    assert "Paused: everything of this tenant" in everything.words
    one = await operator.sent(
        form, subject="contract", name=CHARGE.name, version=CHARGE.version, reason="r"
    )
    assert f"Paused: contract {CHARGE.name} {CHARGE.version} of this tenant" in one.words
