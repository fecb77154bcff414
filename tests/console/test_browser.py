"""The console in a real browser, without scripts: by keyboard alone, narrow, dark and light.

With `CONSOLE_SCREENSHOTS=DIRECTORY` the pages are also drawn into PNG files there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from playwright.async_api import Browser, Page, Request, async_playwright

from api.deployment import CHARGE, Deployment, charge, versioned
from effect_broker.store.catalogue import Catalogue
from effect_broker.store.pool import Pool
from effect_broker.store.tenants import Tenants
from effect_contracts.facts import Outcome, Verdict
from store.samples import contract
from tools import requires_tool
from unresolved.scenes import Scenes, quick

TABS_MAX = 60
NARROW = 400
SENDS_MAX = 5


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """The application on a port of this machine."""
    config = uvicorn.Config(app, port=0, lifespan="off", log_config=None, ws="none", http="h11")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        assert not running.done(), running.exception()
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running


@pytest.fixture
async def site(application: FastAPI) -> AsyncIterator[str]:
    """Where the console is."""
    async with served(application) as address:
        yield address


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """A browser of its own."""
    path = requires_tool("chromium")
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(
            executable_path=str(path), args=["--no-sandbox", "--disable-gpu"]
        )
        yield opened
        await opened.close()


@pytest.fixture
async def api_key(admin_pool: Pool) -> str:
    """Of an operator of `acme`."""
    return (await Tenants(admin_pool).create_key("acme", ("effects", "operate"))).api_key


async def opened(
    browser: Browser, *, width: int = 1000, dark: bool = False
) -> tuple[Page, list[str], list[str]]:
    """A page without scripts; what it asks for, and what it complains of."""
    context = await browser.new_context(
        java_script_enabled=False,
        viewport={"width": width, "height": 900},
        color_scheme="dark" if dark else "light",
    )
    page = await context.new_page()
    asked: list[str] = []
    complaints: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    page.on("request", note)
    page.on("console", lambda message: complaints.append(message.text))
    return page, asked, complaints


async def sign_in(page: Page, site: str, api_key: str) -> None:
    """Sign in as a person does: a broker that says it is busy is asked again."""

    async def fill() -> None:
        await page.goto(f"{site}/console/")
        await page.get_by_label("API key").fill(api_key)

    await sent(page, fill, lambda: page.get_by_role("button", name="Sign in").click())
    await page.get_by_role("heading", name="What waits").wait_for()


async def sent(
    page: Page, fill: Callable[[], Awaitable[None]], send: Callable[[], Awaitable[None]]
) -> None:
    """Fill in a form and send it until it is taken; a broker that is busy answers 503."""
    for _ in range(SENDS_MAX):
        await fill()
        async with page.expect_response(lambda seen: seen.request.method == "POST") as waiting:
            await send()
        answer = await waiting.value
        if answer.status != 503:
            break
    assert answer.status == 303, (answer.status, await page.locator("body").inner_text())


async def tab_to(page: Page, wanted: str) -> None:
    """Press Tab until the element that a selector names has the focus."""
    for _ in range(TABS_MAX):
        if await page.locator(f"{wanted}:focus").count():
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"{wanted} cannot be reached by the keyboard")


async def shoot(page: Page, name: str) -> None:
    directory = os.environ.get("CONSOLE_SCREENSHOTS")
    if directory:
        narrow = (page.viewport_size or {"width": 0})["width"] == NARROW
        await page.screenshot(path=Path(directory) / f"{name}.png", full_page=narrow)


async def test_an_effect_is_found_and_resolved_by_the_keyboard_alone(
    site: str, browser: Browser, api_key: str, scenes: Scenes, deployment: Deployment
) -> None:
    effect_id = await scenes.lost("run:7:mail:welcome", quick("unsafe", "acme-mail"))
    page, asked, complaints = await opened(browser)

    def enter() -> Awaitable[None]:
        return page.keyboard.press("Enter")

    async def type_key() -> None:
        await page.goto(f"{site}/console/")
        # The field for the key gets the focus by itself, a moment after the page is there.
        await page.locator("#api_key:focus").wait_for()
        await page.keyboard.type(api_key)

    await sent(page, type_key, enter)
    await page.get_by_role("heading", name="What waits").wait_for()
    await page.keyboard.press("Tab")
    assert await page.locator("a.skip:focus").is_visible()
    await tab_to(page, f'a[href="/console/effects/{effect_id}"]')
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", name="Record what you know").wait_for()
    await tab_to(page, "#as-committed")
    await page.keyboard.press("Space")
    await tab_to(page, "#reference")
    await page.keyboard.type("https://mail.example/sent/4711")
    await tab_to(page, "#external_id")
    await page.keyboard.type("msg_4711")
    await tab_to(page, "#reason")
    await page.keyboard.type("It is in the list of sent mails.")
    await shoot(page, "resolve")
    # Also the button by which the same form is sent again, after an answer that says so.
    await sent(page, lambda: tab_to(page, 'form[action$="/resolve"] button'), enter)
    await page.get_by_text("Recorded. The page shows the effect as it is now.").wait_for()
    await shoot(page, "resolved")
    ((conclusion, state),) = deployment.execute(
        "SELECT r.conclusion, i.state FROM effect_broker.effect_resolutions AS r"
        " JOIN effect_broker.effect_intents AS i USING (effect_id)"
    )
    assert (conclusion, state) == ("committed", "succeeded")
    # Reloading sends nothing again, and says nothing twice.
    await page.reload()
    assert await page.get_by_text("Recorded. The page").count() == 0
    assert {url.startswith(site) for url in asked} == {True}
    assert not [url for url in asked if api_key in url]
    assert [text for text in complaints if "Content Security Policy" in text] == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_every_page_fits_a_narrow_window_and_can_be_read(
    site: str, browser: Browser, api_key: str, scenes: Scenes, deployment: Deployment,
    application: FastAPI, admin_pool: Pool, dark: bool,
) -> None:  # fmt: skip
    effects = await everything_to_see(scenes, deployment, application, admin_pool)
    page, _, _ = await opened(browser, width=NARROW, dark=dark)
    await page.goto(f"{site}/console/")
    await shoot(page, f"login-{'dark' if dark else 'light'}")
    assert await overflow(page) == []
    await sign_in(page, site, api_key)
    paths = {"queue": "/console/", "approvals": "/console/approvals", "holds": "/console/holds",
             "health": "/console/health", "search": "/console/search?key=order"}  # fmt: skip
    paths |= {name: f"/console/effects/{effect_id}" for name, effect_id in effects.items()}
    for name, path in paths.items():
        await page.goto(site + path)
        await shoot(page, f"{name}-{'dark' if dark else 'light'}")
        assert (name, await overflow(page)) == (name, [])
        assert (name, await illegible(page)) == (name, [])
    background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in background[4:-1].split(",")[:3])
    assert (brightness < 3 * 64) == dark
    await page.set_viewport_size({"width": 1000, "height": 900})
    for name in ("queue", "effect-moving"):
        await page.goto(site + paths[name])
        await shoot(page, f"{name}-wide-{'dark' if dark else 'light'}")


async def everything_to_see(
    scenes: Scenes, deployment: Deployment, application: FastAPI, admin_pool: Pool
) -> dict[str, str]:
    """Effects of many kinds, a hold and workers; some with long names."""
    long = "order:" + "x" * 200
    slow = contract("reconcilable", name="acme-pay", tool="acme.pay")
    looked = await scenes.sent("order:42:charge:v1", slow, Outcome.AMBIGUOUS)
    await scenes.see(looked, Verdict.UNKNOWN)
    lost = await scenes.sent(long, quick("unsafe", "mail"), Outcome.AMBIGUOUS)
    conflict = await scenes.sent("order:41", quick("idempotent", "refund"), Outcome.KEY_CONFLICT)
    await scenes.frozen("order:43:refund:v1", quick("idempotent", "iced"))
    changes = {"oversight": {"approval_valid_seconds": 600.0}}
    await Catalogue(admin_pool).apply(versioned(CHARGE, "approving", **changes))
    async with deployment.client(application) as api:
        asked = (await api.post("/v1/effects", json=charge("order:44:charge:v1"))).json()
    await deployment.settle(asked["effect_id"])
    deployment.execute("""
        INSERT INTO effect_broker.workers (executor_id, ttl_seconds, version, stopped_at) VALUES
            ('worker-7f9c6d5b8-x2x9k-17-0123456789ab', 600, '0.1.0', NULL),
            ('worker-7f9c6d5b8-q8w2n-12-ba9876543210', 600, '0.1.0', now())
    """)
    return {
        "effect-moving": str(looked),
        "effect-long": str(lost),
        "effect-conflict": str(conflict),
        "effect-asked": asked["effect_id"],
    }


async def overflow(page: Page) -> list[str]:
    """What is wider than the window."""
    found: list[str] = await page.evaluate("""() => {
        const wide = document.scrollingElement.scrollWidth > innerWidth;
        if (!wide) return [];
        return [...document.querySelectorAll('body *')]
            .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
            .map(e => e.tagName + '.' + e.className).slice(0, 5).concat(['too wide']);
    }""")
    return found


async def illegible(page: Page) -> list[str]:
    """Text whose contrast to what is behind it is below 4.5 (WCAG AA)."""
    found: list[str] = await page.evaluate("""() => {
        const rgba = c => (c.match(/[\\d.]+/g) || []).map(Number);
        const lum = ([r, g, b]) => [r, g, b].map(v => v / 255)
            .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
            .reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
        const behind = e => {
            for (; e; e = e.parentElement) {
                const c = rgba(getComputedStyle(e).backgroundColor);
                if (c.length === 3 || c[3] > 0) return c;
            }
            return [255, 255, 255];
        };
        const bad = [];
        for (const e of document.querySelectorAll('body *')) {
            const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
            const style = getComputedStyle(e);
            if (!own || style.visibility === 'hidden' || !e.offsetParent || e.disabled) continue;
            const [a, b] = [lum(rgba(style.color)), lum(behind(e))].sort((x, y) => y - x);
            if ((a + .05) / (b + .05) < 4.5) bad.push(e.tagName + '.' + e.className);
        }
        return [...new Set(bad)];
    }""")
    return found
