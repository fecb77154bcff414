"""The distribution holds what it promises, and the locks are complete, hashed and host-free."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import effect_broker
from effect_contracts.catalog import catalog_texts
from repository.checkout import CHECKOUT, PACKAGES, UNTRACKED

LOCKS = ("requirements.lock", "requirements.runtime.lock")
SHIPPED = ("effect_broker", "effect_adapters", "effect_contracts")
# A pin and its marker on one line, then its hashes, one a line.
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)(?: ; .+?)? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


@pytest.fixture(scope="session")
def project() -> dict[str, Any]:
    """The `project` table of pyproject.toml."""
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))
    table: dict[str, Any] = settings["project"]
    return table


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as a user would build it, from a copy of the tree, without a network."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(CHECKOUT / name, source / name)
    for root in ("app", "contracts", "adapters", "chaos"):
        ignored = shutil.ignore_patterns(*UNTRACKED)
        shutil.copytree(CHECKOUT / root, source / root, ignore=ignored)
    # One document more than the tree has, so that an empty catalog proves nothing by accident.
    (source / "contracts" / "catalog").mkdir(exist_ok=True)
    (source / "contracts" / "catalog" / "planted.yaml").write_text("planted: true\n")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", place],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return next(place.glob("*.whl"))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_of_a_lock_is_a_pin_or_a_hash(lock: str) -> None:
    lines = (CHECKOUT / lock).read_text("utf-8").splitlines()
    strange = [
        line
        for line in lines
        if not (line.startswith("#") or PIN.match(line) or HASH.match(line) or not line)
    ]
    assert strange == []
    assert _pins(lock)
    assert all(hashes for hashes in _pins(lock).values())


def test_the_runtime_lock_is_a_part_of_the_lock() -> None:
    everything, runtime = (_pins(lock) for lock in LOCKS)
    assert {pin: everything.get(pin) for pin in runtime} == runtime
    assert len(runtime) < len(everything)


def test_the_locks_hold_what_the_project_asks_for(project: dict[str, Any]) -> None:
    """A dependency that was added or raised without `make lock` is found here."""
    runtime = [Requirement(line) for line in project["dependencies"]]
    extras = [
        Requirement(line)
        for lines in project["optional-dependencies"].values()
        for line in lines
        if not line.startswith("effect-broker")
    ]
    for lock, wanted in ((LOCKS[0], runtime + extras), (LOCKS[1], runtime)):
        versions = dict(_pins(lock))
        unmet = [
            str(requirement)
            for requirement in wanted
            if not any(
                name == canonicalize_name(requirement.name) and version in requirement.specifier
                for name, version in versions
            )
        ]
        assert unmet == [], f"{lock}: run `make lock`"


def test_a_locked_install_can_build_the_project() -> None:
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))
    locked = {name for name, _ in _pins("requirements.lock")}
    needed = {Requirement(line).name for line in settings["build-system"]["requires"]}
    assert needed <= locked


def test_the_version_is_told_once(project: dict[str, Any]) -> None:
    assert effect_broker.__version__ == project["version"]


def test_the_changelog_has_a_place_for_what_comes_next() -> None:
    text = (CHECKOUT / "CHANGELOG.md").read_text("utf-8")
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings[0] == "## [Unreleased]"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_typed(package: str) -> None:
    assert (CHECKOUT / PACKAGES[package] / package / "py.typed").is_file()


def test_the_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    for package in SHIPPED:
        root = CHECKOUT / PACKAGES[package]
        expected = {
            str(path.relative_to(root))
            for path in (root / package).rglob("*")
            if path.is_file() and not UNTRACKED.intersection(path.parts)
        }
        assert expected <= inside


def test_the_wheel_holds_the_catalog_inside_the_package(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    catalog = CHECKOUT / "contracts" / "catalog"
    for document in catalog.rglob("*.yaml"):
        name = f"effect_contracts/catalog/{document.relative_to(catalog)}"
        assert archive.read(name) == document.read_bytes()
    assert "effect_contracts/catalog/planted.yaml" in archive.namelist()


def test_an_installed_package_finds_its_own_catalog(wheel: Path) -> None:
    """The checkout is on the path as well, behind the wheel: the shipped documents win."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from effect_contracts.catalog import catalog_texts; print(*catalog_texts())"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", program, wheel],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()
    in_tree = {path.stem for path in (CHECKOUT / "contracts" / "catalog").glob("*.yaml")}
    assert set(found) == in_tree | {"planted"}
    assert set(catalog_texts()) == in_tree


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    metadata = {top for top in tops if top.endswith(".dist-info")}
    assert tops - metadata == set(SHIPPED)
    assert len(metadata) == 1


def test_the_wheel_carries_licence_and_entry_point(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    licence = next(n for n in archive.namelist() if n.endswith(".dist-info/licenses/LICENSE"))
    assert "effect-broker contributors" in archive.read(licence).decode()
    points = next(n for n in archive.namelist() if n.endswith(".dist-info/entry_points.txt"))
    assert "effect-broker = effect_broker.cli:main" in archive.read(points).decode()


def _pins(lock: str) -> dict[tuple[str, str], list[str]]:
    """Name and version of every pin of the lock, with its hashes."""
    pins: dict[tuple[str, str], list[str]] = {}
    current: list[str] = []
    for line in (CHECKOUT / lock).read_text("utf-8").splitlines():
        if pin := PIN.match(line):
            current = pins.setdefault((canonicalize_name(pin["name"]), pin["version"]), [])
        elif HASH.match(line):
            current.append(line.strip(" \\"))
    return pins
