"""What the docs show is what runs: every Python block, in order, against a real broker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from effect_broker import Broker
from effect_broker.proof.contracts import tuned
from effect_broker.sdk import errors, results
from effect_broker.store.roles import DatabaseRole
from effect_contracts.document import ContractDocument
from hosting.scenes import MODES, Scene
from repository.checkout import CHECKOUT
from sdk.callers import business
from sdk.conftest import TENANT, Access, access_to

PAGE = CHECKOUT / "docs" / "sdk.md"
README = CHECKOUT / "README.md"


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def run(path: Path, namespace: dict[str, object]) -> None:
    for block in blocks(path):
        exec(compile(block, f"{path.name}: {block[:40]!r}", "exec"), namespace)


@pytest.fixture
def demo(scene: Scene, access: Access, monkeypatch: pytest.MonkeyPatch) -> Access:
    """The demo's tools at the target, and the environment of a caller."""
    scene.ensure_workers(1)
    for tool, safety in (("demo.charge", "idempotent"), ("demo.charge_once", "unsafe")):
        kind = tool.replace(".", "_")
        scene.broker.target.client.set_mode(kind, MODES[safety])
        document = tuned(f"demo-charge-{safety}", scene.broker.target.url, kind)
        content = json.loads(document.canonical()) | {"tool": tool}
        scene.broker.apply(ContractDocument.parse_yaml(json.dumps(content)))
    for name, value in access.environment.items():
        monkeypatch.setenv(name, value)
    return access


@pytest.fixture
def shop(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, object]]:
    """What a caller with tables in the broker's database is given, by the page's names."""
    (contract,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    scene.broker.apply(ContractDocument.parse_yaml(contract))
    with business(scene, TENANT, tmp_path) as made:
        monkeypatch.setenv("EFFECT_BROKER_KEY_RING_FILE", made.ring)
        yield {
            "SHOP_DATABASE_URL": made.url,
            "API_DATABASE_URL": scene.broker.url(DatabaseRole.API),
            "KEY_RING_FILE": str(scene.broker.directory / "keyring.json"),
        }


def test_every_example_of_the_page_runs(
    scene: Scene,
    demo: Access,
    shop: dict[str, object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene.broker.target.client.script("commit;RST", kind="demo_charge_once")
    operator = access_to(scene, ("effects", "operate"))
    given = {"URL": operator.url, "OPERATOR_KEY": operator.api_key, "API_KEY": demo.api_key}
    namespace: dict[str, object] = {"__name__": "page", **given, **shop}
    run(PAGE, namespace)
    for name in ("direct", "broker", "operator"):
        used = namespace[name]
        assert isinstance(used, Broker)
        used.close()
    assert capsys.readouterr().out.startswith("charged as ")
    assert scene.ledger("demo_charge_once").effects == 1


def test_the_example_of_the_readme_runs(demo: Access, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(blocks(README)) == 1
    run(README, {"__name__": "readme"})
    assert capsys.readouterr().out.startswith("charged as ")


def test_the_page_names_every_outcome_and_every_error() -> None:
    text = PAGE.read_text("utf-8")
    outcomes = [kind.__name__ for kind in results.Outcome.__args__]
    assert [name for name in outcomes if f"| `{name}` |" not in text] == []
    tree = [
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.BrokerError)
    ]
    assert [name for name in tree if not re.search(rf"^\W*{name}\b", text, re.MULTILINE)] == []
