"""The real targets are pinned, installed once, and never silently absent."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from peers import refused_port
from real_targets import installation
from real_targets.installation import (
    BUILD_LOCK,
    NPM_LOCK,
    PYTHON_LOCK,
    NotInstalled,
    installed,
    node_targets,
)
from tools import REQUIRE_ALL_VARIABLE, ToolMissing


def test_every_npm_package_is_pinned_by_its_hash_and_names_no_registry() -> None:
    packages = json.loads(NPM_LOCK.read_text())["packages"]
    locked = {name: package for name, package in packages.items() if name}
    assert "node_modules/stripe-stateful-mock" in locked
    assert all(package["integrity"].startswith("sha512-") for package in locked.values())
    assert not any("resolved" in package for package in locked.values())


@pytest.mark.parametrize("lock", [BUILD_LOCK, PYTHON_LOCK], ids=lambda lock: lock.name)
def test_every_python_package_is_pinned_by_its_hash_and_names_no_host(lock: Path) -> None:
    text = lock.read_text()
    pins = re.findall(r"^[a-z0-9-]+==\S+(?: ; .*)? \\\n    --hash=sha256:", text, re.MULTILINE)
    assert len(pins) == len(re.findall(r"^[^ #]", text, re.MULTILINE)) > 0
    assert "://" not in text


def test_workers_that_start_together_install_once(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("1")
    together = threading.Barrier(4)
    times: list[Path] = []

    def ask() -> Path:
        together.wait()
        return installed("thing", [lock], times.append, tmp_path / "home")

    with ThreadPoolExecutor(4) as workers:
        places = {asked.result() for asked in [workers.submit(ask) for _ in range(4)]}
    assert len(places) == len(times) == 1


def test_another_lock_is_installed_anew_and_the_old_one_removed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    places = []
    for text in ("1", "2"):
        lock.write_text(text)
        places.append(installed("thing", [lock], lambda _: None, tmp_path / "home"))
    old, new = places
    assert (old.exists(), new.exists()) == (False, True)


def test_an_installation_that_failed_is_tried_again(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("1")

    def fail(place: Path) -> None:
        (place / "half").touch()
        raise NotInstalled("no line")

    with pytest.raises((pytest.skip.Exception, ToolMissing)):
        installed("thing", [lock], fail, tmp_path / "home")
    place = installed("thing", [lock], lambda _: None, tmp_path / "home")
    assert not (place / "half").exists()


@pytest.mark.parametrize(
    ("required", "ending"), [("", pytest.skip.Exception), ("1", ToolMissing)], ids=["skip", "fail"]
)
def test_without_a_registry_the_tests_do_not_run_and_say_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    required: str,
    ending: type[BaseException],
) -> None:
    monkeypatch.setattr(installation, "HOME", tmp_path / "home")
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{refused_port()}/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    monkeypatch.setenv("npm_config_fetch_retry_mintimeout", "10")
    monkeypatch.setenv(REQUIRE_ALL_VARIABLE, required)
    with pytest.raises(ending, match=r"real targets are not installed: npm ended with"):
        node_targets()
