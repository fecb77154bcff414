"""Who gets in, how long, and whose forms are taken."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from fastapi import FastAPI

from api.deployment import Deployment, charge, in_doubt
from console.browsing import OWN, SITE, Operator, Page, browser, sign_in
from effect_broker.api.console import logins
from effect_broker.api.console.logins import LoginLimit
from effect_broker.config import ConfigurationProblem, load_settings
from effect_broker.store.pool import Pool
from effect_broker.store.roles import DatabaseRole
from effect_broker.store.tenants import Tenants
from effect_contracts.errors import RateLimited

PAGES = ("/console/", "/console/approvals", "/console/holds", "/console/health",
         "/console/search?key=a")  # fmt: skip
POLICY = ("default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; "
          "base-uri 'none'")  # fmt: skip
HOLD = {"subject": "all", "reason": "r"}


async def is_signed_in(client: httpx.AsyncClient) -> bool:
    answer = await client.get("/console/")
    assert answer.status_code in {200, 303}
    return answer.status_code == 200


# Signing in ---------------------------------------------------------------------------------------


async def test_without_a_session_every_page_leads_to_the_form_and_back(
    application: FastAPI, operator: Operator
) -> None:
    async with browser(application) as client:
        for path in PAGES:
            answer = await client.get(path)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/console/login")
        assert (await client.get("/console")).headers["location"] == "/console/"
        there = (await client.get("/console/holds")).headers["location"]
        form = Page((await client.get(there)).text).form("/login")
        data = form.fields | {"api_key": operator.api_key}
        answer = await client.post("/console/login", data=data, headers=OWN)
        assert answer.headers["location"] == "/console/holds"


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example/", "//evil.example", "/console/../v1", "/console/effects/x"]
)
async def test_signing_in_leads_nowhere_else(
    application: FastAPI, operator: Operator, elsewhere: str
) -> None:
    async with browser(application) as client:
        assert "evil" not in (await client.get(f"/console/login?next={elsewhere}")).text
        data = {"api_key": operator.api_key, "next": elsewhere}
        answer = await client.post("/console/login", data=data, headers=OWN)
        assert answer.headers["location"] == "/console/"


async def test_the_cookie_is_for_the_console_alone_and_out_of_reach_of_scripts(
    application: FastAPI, operator: Operator, deployment: Deployment
) -> None:
    async with browser(application) as client:
        cookie = (await sign_in(client, operator.api_key)).headers["set-cookie"]
    name, value = cookie.partition(";")[0].split("=", 1)
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert attributes == {"httponly", "path=/console", "samesite=strict"}
    assert len(value) == 43  # 256 bits
    assert operator.api_key not in cookie
    ((stored,),) = deployment.execute(
        "SELECT string_agg(s::text, ' ') FROM effect_broker.console_sessions AS s"
    )
    assert value not in stored
    async with browser(application, "https://broker") as client:
        own = {"Origin": "https://broker"}
        cookie = (await sign_in(client, operator.api_key, **own)).headers["set-cookie"]
    assert "; Secure" in cookie
    assert cookie.startswith(f"__Secure-{name}=")


async def test_a_key_that_is_none_or_may_not_operate_gets_no_session(
    application: FastAPI, deployment: Deployment, operator: Operator, admin_pool: Pool
) -> None:
    before = deployment.count("console_sessions")
    async with browser(application) as client:
        for key in ("", "eb_wrong", "no key at all", "eb_" + "x" * 10_000, "<b>"):
            answer = await sign_in(client, key)
            assert answer.status_code == 401
            assert "This is no key that is in use." in Page(answer.text).words
            assert "set-cookie" not in answer.headers
        answer = await sign_in(client, deployment.api_keys["acme"])
        assert (answer.status_code, "may not operate" in answer.text) == (403, True)
        await Tenants(admin_pool).switch("acme", disabled=True)
        await asyncio.sleep(2.1)  # how long an answer about a key is used again
        answer = await sign_in(client, operator.api_key)
        assert (answer.status_code, "This tenant is disabled." in answer.text) == (403, True)
        assert (await operator.client.get("/console/")).status_code == 403
    assert deployment.count("console_sessions") == before


async def test_too_many_tries_have_to_wait(
    application: FastAPI, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "ADDRESS_PER_SECOND", 0.001)
    async with browser(application) as client:
        for _ in range(logins.ADDRESS_BURST - 1):
            await sign_in(client, "eb_wrong")
        answer = await sign_in(client, operator.api_key)
    assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (429, True)


def test_a_limit_comes_back_with_time_and_holds_a_bounded_number_of_addresses() -> None:
    now = [1000.0]
    limit = LoginLimit(lambda: now[0])

    def refused(address: str) -> bool:
        try:
            limit.count(address)
        except RateLimited:
            return True
        return False

    for _ in range(logins.ADDRESS_BURST):
        assert not refused("a")
    assert refused("a")
    assert not refused("b")
    now[0] += 1 / logins.ADDRESS_PER_SECOND
    assert not refused("a")
    assert refused("a")
    for number in range(2 * logins.ALL_BURST):
        refused(str(number))
    assert refused("yet another")
    now[0] += 1
    assert not refused("yet another")
    for number in range(logins.ADDRESSES_MAX + 10):
        now[0] += 1
        refused(f"n{number}")
    assert len(limit._addresses) == logins.ADDRESSES_MAX


# How a session ends -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE effect_broker.console_sessions SET seen_at = seen_at - interval '31 minutes'",
        "UPDATE effect_broker.console_sessions SET created_at = created_at - interval '9 h',"
        " expires_at = expires_at - interval '8 h'",
        "UPDATE effect_broker.api_keys SET revoked_at = now()",
        "DELETE FROM effect_broker.console_sessions",
    ],
)
async def test_a_session_ends_by_itself_and_with_its_key(
    deployment: Deployment, operator: Operator, change: str
) -> None:
    form = (await operator.page("/console/holds")).form("/holds")
    deployment.execute(change)
    assert not await is_signed_in(operator.client)
    answer = await operator.send(form, **(HOLD | {"reason": "what I wrote"}))
    page = Page(answer.text)
    assert answer.status_code == 401
    assert "Your session has ended. Nothing was recorded." in page.words
    assert "what I wrote" in page.words
    assert deployment.count("holds") == 0


async def test_a_session_that_is_used_lives_on_for_its_time(
    deployment: Deployment, operator: Operator
) -> None:
    back = "UPDATE effect_broker.console_sessions SET seen_at = seen_at - interval '29 minutes'"
    for _ in range(3):
        deployment.execute(back)
        assert await is_signed_in(operator.client)
    ((hours,),) = deployment.execute(
        "SELECT extract(epoch FROM expires_at - created_at) / 3600"
        " FROM effect_broker.console_sessions"
    )
    assert float(hours) == pytest.approx(8, abs=0.01)


async def test_a_key_that_may_not_operate_any_more_does_not(
    deployment: Deployment, operator: Operator
) -> None:
    deployment.execute("UPDATE effect_broker.api_keys SET scopes = '{effects}'")
    answer = await operator.client.get("/console/")
    assert (answer.status_code, "This API key may not operate." in answer.text) == (403, True)


async def test_who_signs_out_is_out_everywhere(operator: Operator, application: FastAPI) -> None:
    form = (await operator.page("/console/")).form("/logout")
    cookies = dict(operator.client.cookies)
    answer = await operator.send(form)
    assert answer.headers["location"] == "/console/login"
    async with browser(application) as thief:
        thief.cookies.update(cookies)
        assert not await is_signed_in(thief)


async def test_another_process_knows_the_session_and_it_survives_a_read_only_database(
    deployment: Deployment, operator: Operator
) -> None:
    async with deployment.application() as other, browser(other) as client:
        client.cookies.update(dict(operator.client.cookies))
        assert await is_signed_in(client)
    name = deployment.database.name
    deployment.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with deployment.application() as other, browser(other) as client:
        client.cookies.update(dict(operator.client.cookies))
        answer = await client.get("/console/health")
        assert (answer.status_code, "read only" in answer.text) == (200, True)


@pytest.mark.parametrize("value", ["", "x", "x" * 43, "x" * 5000, "é"])
async def test_an_invented_session_is_none(application: FastAPI, value: str) -> None:
    async with browser(application) as client:
        raw = f"effect_broker_console={value}".encode()
        answer = await client.get("/console/", headers=[(b"cookie", raw)])
        assert answer.status_code == 303


async def test_of_one_key_the_newest_sessions_stay(
    application: FastAPI, operator: Operator, deployment: Deployment
) -> None:
    deployment.execute(
        "INSERT INTO effect_broker.console_sessions (session_hash, tenant_id, key_id, expires_at)"
        " SELECT sha256(n::text::bytea), tenant_id, key_id, expires_at"
        " FROM effect_broker.console_sessions, generate_series(1, 40) AS n"
    )
    async with browser(application) as client:
        await sign_in(client, operator.api_key)
        assert await is_signed_in(client)
    assert deployment.count("console_sessions") == 20


def test_no_role_of_a_process_reads_the_sessions(deployment: Deployment) -> None:
    for role in (DatabaseRole.API, DatabaseRole.WORKER, DatabaseRole.ADMIN, DatabaseRole.PRUNE):
        with (
            psycopg.connect(deployment.database.url_for(role)) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute("SELECT * FROM effect_broker.console_sessions")
    with (
        psycopg.connect(deployment.database.url_for(DatabaseRole.WORKER)) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT * FROM effect_broker.console_session('')")


# Forms of others ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://broker.evil.example"},
        {"Origin": "http://broker:81"},
        {"Origin": SITE, "Sec-Fetch-Site": "cross-site"},
        {"Origin": SITE, "Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
async def test_a_form_of_another_site_is_refused(
    application: FastAPI, deployment: Deployment, operator: Operator, headers: dict[str, str]
) -> None:
    form = (await operator.page("/console/holds")).form("/holds")
    answer = await operator.client.post(form.action, data=form.fields | HOLD, headers=headers)
    assert (answer.status_code, deployment.count("holds")) == (403, 0)
    assert "not sent by a page of this console" in answer.text
    async with browser(application) as client:
        data = {"api_key": operator.api_key}
        answer = await client.post("/console/login", data=data, headers=headers)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


@pytest.mark.parametrize("token", [None, "", "0" * 64, "é"])
async def test_a_form_without_the_token_of_the_session_is_refused(
    deployment: Deployment, operator: Operator, second: Operator, token: str | None
) -> None:
    form = (await operator.page("/console/holds")).form("/holds")
    fields = form.fields | HOLD
    del fields["token"]
    if token is not None:
        fields["token"] = token
    answer = await operator.client.post(form.action, data=fields, headers=OWN)
    assert (answer.status_code, deployment.count("holds")) == (403, 0)
    others = (await second.page("/console/holds")).form("/holds")
    answer = await operator.send(others, **HOLD)
    assert (answer.status_code, deployment.count("holds")) == (403, 0)
    assert (await operator.send(form, **HOLD)).status_code == 303


async def test_every_form_asks_for_the_token(
    deployment: Deployment, application: FastAPI, operator: Operator
) -> None:
    async with deployment.client(application) as api:
        effect_id = await in_doubt(api, deployment)
    for path in (
        "/console/logout",
        *(f"/console/effects/{effect_id}/{v}" for v in ("resolve", "confirm", "judge", "look")),
        "/console/holds",
        f"/console/holds/{effect_id}/lift",
    ):
        answer = await operator.client.post(path, data={"a": "b"}, headers=OWN)
        assert (path, answer.status_code) == (path, 403)
        assert (await operator.client.get(path)).status_code in {200, 303}
    assert await is_signed_in(operator.client)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"token=a&token=b", "application/x-www-form-urlencoded"),
        (b"reason=%00", "application/x-www-form-urlencoded"),
        (b"reason=%ff", "application/x-www-form-urlencoded"),
        (b"\xff", "application/x-www-form-urlencoded"),
        (b"nonsense", "application/x-www-form-urlencoded"),
        (b"&".join(b"a%d=b" % n for n in range(100)), "application/x-www-form-urlencoded"),
        (b"{}", "application/json"),
        (b"a=b", "text/plain"),
        (b"a=" + b"x" * 300_000, "application/x-www-form-urlencoded"),
    ],
)
async def test_what_is_no_form_is_refused_with_a_page(
    deployment: Deployment, operator: Operator, content: bytes, kind: str
) -> None:
    headers = {**OWN, "Content-Type": kind}
    answer = await operator.client.post("/console/holds", content=content, headers=headers)
    assert answer.status_code in {400, 413, 422}
    assert "<h1>" in answer.text
    assert deployment.count("holds") == 0


async def test_behind_a_proxy_the_setting_names_the_site(
    deployment: Deployment, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFFECT_BROKER_CONSOLE_ORIGIN", "https://ops.example")
    async with deployment.application() as app, browser(app, "http://inside:8080") as client:
        answer = await sign_in(client, operator.api_key, Origin="http://inside:8080")
        assert answer.status_code == 403
        answer = await sign_in(client, operator.api_key, Origin="https://ops.example")
        assert (answer.status_code, "; Secure" in answer.headers["set-cookie"]) == (303, True)


@pytest.mark.parametrize("value", ["ops.example", "https://ops.example/", "https://OPS", "ftp://a"])
def test_a_site_that_no_browser_would_name_so_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("EFFECT_BROKER_CONSOLE_ORIGIN", value)
    with pytest.raises(ConfigurationProblem, match="EFFECT_BROKER_CONSOLE_ORIGIN"):
        load_settings()


# Tenants ------------------------------------------------------------------------------------------


async def test_nothing_of_another_tenant_is_seen_or_moved(
    deployment: Deployment, application: FastAPI, operator: Operator, foreigner: Operator
) -> None:
    async with deployment.client(application) as api:
        effect_id = await in_doubt(api, deployment, "secret-order")
    path = f"/console/effects/{effect_id}"
    form = (await operator.page(path)).form("/resolve")
    await operator.sent((await operator.page("/console/holds")).form("/holds"), **HOLD)
    for page in (*PAGES, "/console/search?key=secret"):
        assert "secret-order" not in (await foreigner.page(page)).words
    assert "Nothing is held." in (await foreigner.page("/console/holds")).words
    assert (await foreigner.client.get(path)).status_code == 404
    token = (await foreigner.page("/console/")).form("/logout").fields["token"]
    lift = (await operator.page("/console/holds")).form("/lift")
    fields: dict[str, Any] = {"conclusion": "committed", "reason": "r", "reference": "r"}
    for one in (form, lift):
        answer = await foreigner.send(one, **fields, token=token)
        assert answer.status_code == 404
    assert deployment.count("effect_resolutions") == 0
    assert deployment.execute("SELECT lifted_at FROM effect_broker.holds") == [(None,)]


# Headers ------------------------------------------------------------------------------------------


async def test_every_answer_has_the_policy_and_is_kept_nowhere(
    deployment: Deployment, application: FastAPI, operator: Operator
) -> None:
    async with deployment.client(application) as api:
        effect = (await api.post("/v1/effects", json=charge())).json()
    client = operator.client
    form = (await operator.page("/console/holds")).form("/holds")
    answers = [
        *[await client.get(path) for path in PAGES],
        await client.get("/console"),
        await client.get("/console/style.css"),
        await client.get("/console/login"),
        await client.get(f"/console/effects/{effect['effect_id']}"),
        await client.get("/console/no/such/page"),
        await client.get("/console/effects/not-an-id"),
        await client.get("/console/?cursor=x"),
        await client.get("/console/?reason=x"),
        await client.get("/console/?tool=%00"),
        await client.put("/console/"),
        await client.post("/console/login", data={"api_key": "x"}, headers=OWN),
        await client.post("/console/holds"),
        await operator.send(form),
        await operator.send(form, **HOLD),
    ]
    codes = [answer.status_code for answer in answers]
    assert codes == [200] * 5 + [
        308,
        200,
        200,
        200,
        404,
        404,
        400,
        400,
        400,
        405,
        401,
        403,
        422,
        303,
    ]
    for answer in answers:
        assert answer.headers.get_list("content-security-policy") == [POLICY]
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"


async def test_an_outage_is_a_page_and_not_a_trace(
    deployment: Deployment, operator: Operator
) -> None:
    deployment.execute("ALTER TABLE effect_broker.effect_intents RENAME TO away")
    answer = await operator.client.get("/console/")
    assert (answer.status_code, answer.headers["content-security-policy"]) == (503, POLICY)
    assert "The database does not answer." in Page(answer.text).words


def test_no_template_has_a_script_a_style_or_a_foreign_address() -> None:
    place = Path(logins.__file__).parent
    templates = sorted((place / "templates").glob("*.html"))
    assert len(templates) > 8
    for template in templates:
        text = template.read_text("utf-8")
        found = re.findall(r"<script|<style|\bstyle=|\son\w+=|https?://|\|\s*safe", text)
        assert (template.name, found) == (template.name, [])
    assert not re.search(r"url\(|@import|https?:", (place / "style.css").read_text("utf-8"))
