"""Whatever the OpenAPI document permits, and what it does not, the real process answers below 500.

Requests are derived from the document, good ones and broken ones, and sent to a process of its own;
many name an effect that exists, so that they come further than its absence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

from api.deployment import Deployment, charge
from effect_broker.api.rights import OPEN, RIGHTS
from effect_broker.intake import Scope
from effect_broker.proof.stack import Stack
from effect_broker.store.pool import Pool
from effect_broker.store.tenants import Tenants

# Of each route and each kind of request: some twenty seconds in all. More is a matter of patience:
# every one that was found has a test of its own where it belongs.
EXAMPLES_MAX = 8
# A long poll would only wait.
WAIT_SECONDS_MAX = 0.02
# What is no answer of a broker whose database is there.
BROKEN = range(500, 600)

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True, slots=True)
class Served:
    """A process that serves, a key with every right, and ids that exist."""

    url: str
    api_key: str
    ids: dict[str, list[str]]
    log: Path


@pytest.fixture
async def served(deployment: Deployment, admin_pool: Pool, tmp_path: Path) -> Any:
    """A real process with something in it."""
    made = await Tenants(admin_pool).create_key("acme", [right.value for right in Scope])
    with Stack(tmp_path, deployment.environment) as stack:
        api = stack.api()
        url = api.wait_ready()
        headers = {"Authorization": f"Bearer {made.api_key}"}
        with httpx.Client(base_url=url, headers=headers, trust_env=False) as http:

            def id_of(path: str, body: dict[str, Any], name: str) -> str:
                answer = http.post(path, json=body)
                assert answer.is_success, answer.text
                return str(answer.json()[name])

            ids = {
                "effect_id": [id_of("/v1/effects", charge("k-1"), "effect_id")],
                "hold_id": [
                    id_of("/v1/holds", {"tool": "demo.post_entry", "reason": "r"}, "hold_id")
                ],
                "drill_id": [
                    id_of("/v1/drills", {"tool": "demo.post_entry", "reason": "r"}, "drill_id")
                ],
                "subscription_id": [
                    id_of(
                        "/v1/subscriptions",
                        {"url": "https://hooks.acme.example/"},
                        "subscription_id",
                    )
                ],
                "tenant": ["acme"],
                "tool": ["demo.post_entry"],
            }
        yield Served(url, made.api_key, ids, api.log)


def operations(url: str) -> Iterator[Any]:
    document = httpx.get(f"{url}/openapi.json", trust_env=False).json()
    for result in schemathesis.openapi.from_dict(document).get_all_operations():
        assert isinstance(result, Ok)
        yield result.ok()


def asked(operation: Any, mode: GenerationMode, served: Served) -> Callable[[], None]:
    """A run of requests to one operation."""
    session = requests.Session()
    session.trust_env = False

    @settings(
        max_examples=EXAMPLES_MAX,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans())
    def ask(case: Any, known: bool) -> None:
        if known:
            for name in case.path_parameters or {}:
                case.path_parameters[name] = served.ids.get(name, [case.path_parameters[name]])[0]
        for name in ("wait", "wait_seconds"):
            wait = (case.query or {}).get(name)
            if isinstance(wait, int | float) and not isinstance(wait, bool):
                case.query[name] = min(wait, WAIT_SECONDS_MAX)
        answer = case.call(
            base_url=served.url,
            session=session,
            headers={"Authorization": f"Bearer {served.api_key}"},
        )
        problem = (case.as_curl_command(), answer.status_code, answer.text)
        assert answer.status_code not in BROKEN, problem
        if answer.status_code >= 400:
            kind = answer.headers["content-type"][0]
            assert kind == "application/problem+json", problem
            assert answer.json()["code"], problem

    return ask


def test_no_request_is_answered_as_an_error_of_ours(served: Served) -> None:
    tried = set()
    for operation in operations(served.url):
        asked(operation, GenerationMode.POSITIVE, served)()
        with suppress(Unsatisfiable):  # nothing can be wrong where nothing is asked for
            asked(operation, GenerationMode.NEGATIVE, served)()
        tried.add((operation.method.upper(), operation.path))
    assert tried == RIGHTS.keys() | OPEN.keys()
    log = served.log.read_text()
    assert "unexpected" not in log
    assert "Traceback" not in log
