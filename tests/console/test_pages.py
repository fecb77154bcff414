"""What the pages show: the queue, one effect with its history, search, health; and poison."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from fastapi import FastAPI

from api.deployment import Deployment
from console.browsing import Operator, Page
from effect_broker.reasons import words_of
from effect_contracts.facts import Outcome, Verdict
from unresolved.scenes import REASONS_OF, Scenes, quick

POISON = "<script>alert(1)</script>\"'&{{7*7}}\u202egnp\x1b[31m"


async def test_the_queue_shows_all_that_waits_the_most_urgent_first_with_words(
    operator: Operator, scenes: Scenes
) -> None:
    assert "Nothing waits." in (await operator.page("/console/")).words
    await scenes.everything()
    page = await operator.page("/console/")
    links = [a["href"] for tag, a in page.tags if tag == "a" and a.get("class") == "key"]
    shown = [scenes.keys[one] for link in links for one in scenes.keys if str(one) in str(link)]
    assert sorted(shown) == sorted(REASONS_OF)
    # Those whose key expires come before those that have none.
    assert shown.index("idempotent-lost") < shown.index("unsafe-ambiguous")
    for key in ("outcome_unknown", "target_key_conflict"):
        assert words_of(key).meaning in page.words
        assert str(words_of(key).remedy) in page.words
    filtered = await operator.page("/console/?reason=target_key_conflict")
    assert "key-conflict" in filtered.words
    assert "unsafe-ambiguous" not in filtered.words
    assert "Nothing that waits fits" in (await operator.page("/console/?tool=none")).words


async def test_the_queue_goes_on_page_by_page(operator: Operator, scenes: Scenes) -> None:
    for number in range(53):
        await scenes.frozen(f"iced-{number:02d}", quick("unsafe", "iced"))
    first = await operator.page("/console/")
    following = [f for f in first.forms if "cursor" in f.fields]
    cursor = following[0].fields["cursor"]
    rest = await operator.page(f"/console/?cursor={cursor}")
    for number in range(53):
        assert (f"iced-{number:02d}" in first.words) != (f"iced-{number:02d}" in rest.words)


async def test_an_effect_is_shown_with_its_attempts_look_ups_and_who_did_what(
    operator: Operator, scenes: Scenes
) -> None:
    effect_id = await scenes.sent("looked-up", quick("reconcilable"), Outcome.AMBIGUOUS)
    await scenes.see(effect_id, Verdict.UNKNOWN)
    await scenes.see(effect_id, Verdict.NOT_COMMITTED)
    page = await operator.page(f"/console/effects/{effect_id}")
    for words in (
        "Submitted and stored",
        "Attempt 1 begins; from now on it may have been sent",
        "Attempt 1 ended: answer lost",
        "Learned from look-up at the target: no clear answer",
        "Learned from look-up at the target: it is not there",
        "by worker executor-1",
        "by worker executor-2",
        "by caller test",
        "Look-up at the target : it is not there",
        "“Not there” counts if you look after",
        "one effect if the target's look-up is truthful and bounded",
    ):
        assert words in page.words, words
    assert "host name" not in page.words
    await scenes.see(effect_id, Verdict.UNKNOWN, "dns_failed")
    page = await operator.page(f"/console/effects/{effect_id}")
    assert "The target's host name could not be looked up. You: Check the address" in page.words


async def test_an_alert_and_a_final_effect_are_told(operator: Operator, scenes: Scenes) -> None:
    refused = await scenes.sent("contradicted", quick("reconcilable"), Outcome.REJECTED)
    await scenes.see(refused, Verdict.COMMITTED)
    page = await operator.page(f"/console/effects/{refused}")
    assert "its target has contradicted the receipt since" in page.words
    assert [form.action for form in page.forms if form.action.endswith("/resolve")] == []


async def test_an_effect_is_found_by_its_key_a_beginning_of_it_or_its_id(
    operator: Operator, scenes: Scenes
) -> None:
    one = await scenes.sent("order:1", quick("idempotent"), Outcome.COMMITTED)
    await scenes.sent("order:2", quick("idempotent"), Outcome.COMMITTED)
    both = await operator.page("/console/search?key=order:")
    assert ("order:1" in both.words, "order:2" in both.words) == (True, True)
    for key in ("order:1", str(one), f" {one} "):
        answer = await operator.client.get("/console/search", params={"key": key})
        assert answer.headers["location"] == f"/console/effects/{one}"
    for key in ("nothing", "a b", "é", "", "<b>", "'; --"):
        answer = await operator.client.get("/console/search", params={"key": key})
        assert (answer.status_code, "There is none." in answer.text) == (200, True)
    assert (await operator.client.get(f"/console/effects/{uuid4()}")).status_code == 404


async def test_workers_and_the_queue_are_shown(
    deployment: Deployment, operator: Operator, scenes: Scenes
) -> None:
    page = await operator.page("/console/health")
    assert "None has run." in page.words
    assert "something is missing" in page.words
    deployment.execute("""
        INSERT INTO effect_broker.workers (executor_id, ttl_seconds, beat_at, draining_at,
            stopped_at, version) VALUES
            ('lives', 600, now(), NULL, NULL, '9.9'), ('drains', 600, now(), now(), NULL, NULL),
            ('is-lost', 1, now() - interval '1 h', NULL, NULL, NULL),
            ('ended', 1, now() - interval '1 h', NULL, now(), NULL),
            ('long-ago', 1, now() - interval '2 d', NULL, NULL, NULL)
    """)
    await scenes.sent("unsafe", quick("unsafe"), Outcome.AMBIGUOUS)
    await scenes.submit("late", quick("idempotent"))
    deployment.execute(
        "UPDATE effect_broker.effect_intents SET next_action_at = now() - interval '10 min'"
        " WHERE operation_key = 'late'"
    )
    page = await operator.page("/console/health")
    for words in (
        "works lives", "ends its work drains", "lost is-lost", "stopped ended", "Release 9.9",
        "Overdue 1 , the longest for 10 min", "outcome_unknown 1:", "All is well",
    ):  # fmt: skip
        assert words in page.words, words
    assert "long-ago" not in page.words


async def test_a_backlog_counts_to_a_bound(deployment: Deployment, operator: Operator) -> None:
    from effect_broker.store import console

    limits = dict(console._LIMITS)
    try:
        console._LIMITS["counted_max"] = 0
        assert "Overdue none" in (await operator.page("/console/health")).words
    finally:
        console._LIMITS.update(limits)


# Poison -------------------------------------------------------------------------------------------


async def test_poison_is_shown_and_does_nothing(
    deployment: Deployment, application: FastAPI, operator: Operator, second: Operator
) -> None:
    from api.deployment import in_doubt

    async with deployment.client(application) as api:
        effect_id = await in_doubt(api, deployment, "<script>alert(1)</script>\"'&{{7*7}}")
    values = {"poison": POISON, "code": json.dumps(POISON)}
    item = {"kind": POISON, "observed_at": POISON, "reference": POISON, "note": POISON}
    said = {"conclusion": "failed", "reason": POISON, "external_id": POISON, "evidence": [item]}
    content = json.dumps(said).replace("'", "''")
    poison = POISON.replace("'", "''")
    deployment.execute(f"""
        SET session_replication_role = replica;
        UPDATE effect_broker.effect_intents SET tool = '{poison}', trace_id = '{poison}',
            requested_by = 'caller:{poison}', contract_name = '{poison}',
            target_identity = '{poison}',
            preview = '{json.dumps(values).replace("'", "''")}';
        UPDATE effect_broker.effect_attempts SET code = '{poison}', external_id = '{poison}',
            executor_id = '{poison}';
        UPDATE effect_broker.effect_events SET actor = 'worker:{poison}', reason = '{poison}',
            kind = '{poison}', metadata = '{json.dumps(values).replace("'", "''")}';
        INSERT INTO effect_broker.effect_evidence SELECT gen_random_uuid(), tenant_id, effect_id,
            'probe', 'unknown', '{poison}', now(), now(), 1, ARRAY['{poison}'], NULL, NULL, NULL
            FROM effect_broker.effect_intents;
        INSERT INTO effect_broker.effect_proposals (tenant_id, effect_id, decision_id,
                expected_version, content, digest, actor)
            SELECT tenant_id, effect_id, 'd-<b>', 2, '{content}',
                sha256(convert_to('{content}', 'UTF8')), 'operator:{poison}'
                FROM effect_broker.effect_intents;
        INSERT INTO effect_broker.workers (executor_id, ttl_seconds, host, version)
            VALUES ('{poison}', 600, '{poison}', '{poison}');
        INSERT INTO effect_broker.holds (hold_id, kind, tenant_id, tool, reason, placed_by)
            SELECT gen_random_uuid(), 'paused', tenant_id, '{poison}', '{poison}', '{poison}'
            FROM effect_broker.effect_intents;
    """)
    pages = ["/console/", f"/console/effects/{effect_id}", "/console/holds", "/console/health",
             "/console/approvals", "/console/search?key=%3Cscript"]  # fmt: skip
    for path in pages:
        answer = await operator.client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        harmless(answer.text)
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in answer.text
    form = (await operator.page(pages[1])).form("/resolve")
    refused = await operator.send(form, conclusion="", reason=POISON, reference=POISON)
    harmless(refused.text)
    # What was typed comes back as it was typed, but for what cannot be printed.
    assert Page(refused.text).form("/resolve").fields["reason"].startswith("<script>alert(1)")
    filled = {"conclusion": "committed", "reason": f"{POISON}\nsecond line", "reference": POISON}
    recorded = await operator.send(form, **filled)
    assert recorded.status_code == 303, recorded.text
    shown = await operator.client.get(pages[1])
    harmless(shown.text)
    lookup = await operator.client.get("/console/search", params={"key": "<script>alert(1)"})
    harmless((await operator.client.get(lookup.headers.get("location", pages[0]))).text)


def harmless(text: str) -> None:
    page = Page(text)
    assert [tag for tag, _ in page.tags if tag in {"script", "style", "img", "iframe"}] == []
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert not str(attributes.get("href", "")).startswith("javascript")
    assert "49" not in [word.strip("\"'&") for word in page.words.split()]
    assert not [c for c in text if not c.isprintable() and c not in "\n\t"]
    assert "\u202e" not in text


@pytest.mark.parametrize("value", ["a", "a\x00b", "\u202e", "a\nb", "\U000e0041", "\u2028"])
def test_what_cannot_be_printed_is_written_out(value: str) -> None:
    from effect_broker.api.console.rendering import prose, visible

    assert str(visible(value)).isprintable()
    assert all(line.isprintable() for line in str(prose(value)).split("\n"))
    assert visible("é ü €") == "é ü €"
