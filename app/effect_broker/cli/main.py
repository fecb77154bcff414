"""The root of the command line, and the one boundary at which errors become sentences.

Exit codes: 0 done, 1 it did not work (the text says what to do), 2 the command was not understood,
3 the answer is "not yet" or "not known" (`effects wait`), 4 nothing could be tried from here, so
that nothing was learned (`contracts conformance`, `contracts certify`), 130 interrupted.
"""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from collections.abc import Mapping
from functools import cache
from typing import Annotated, ClassVar

import typer

from effect_broker import __version__
from effect_broker.cli.later import CommandsLater, Register
from effect_broker.cli.output import complain


def _servers(root: typer.Typer) -> None:
    from effect_broker.cli import servers

    servers.register(root)


def _doctor(root: typer.Typer) -> None:
    from effect_broker.cli import doctor

    doctor.register(root)


def _prune(root: typer.Typer) -> None:
    from effect_broker.cli import retention

    retention.register(root)


def _up(root: typer.Typer) -> None:
    from effect_broker.cli import up

    up.register(root)


def _demo(root: typer.Typer) -> None:
    from effect_broker.cli import proofs

    proofs.register(root)


@cache  # two roots share one
def _keys_app() -> typer.Typer:
    from effect_broker.cli import retention, tenants

    retention.register_rotation(tenants.keys_app)
    return tenants.keys_app


@cache
def _contracts_app() -> typer.Typer:
    from effect_broker.cli import certificates, certification, conformance, contracts, simulate

    conformance.register(contracts.app)
    simulate.register(contracts.app)
    certification.register(contracts.app)
    contracts.app.add_typer(certificates.app, name="certificate")
    return contracts.app


def _keys(root: typer.Typer) -> None:
    root.add_typer(_keys_app(), name="keys")


def _contracts(root: typer.Typer) -> None:
    root.add_typer(_contracts_app(), name="contracts")


def _group(name: str, attribute: str = "app") -> Register:
    """A group whose module is called as it is."""

    def register(root: typer.Typer) -> None:
        module = importlib.import_module(f"effect_broker.cli.{name}")
        root.add_typer(getattr(module, attribute), name=name)

    return register


class _Root(CommandsLater):
    later: ClassVar[Mapping[str, Register]] = {
        **dict.fromkeys(("serve", "worker", "reconciler", "migrate", "target"), _servers),
        "doctor": _doctor,
        "prune": _prune,
        "up": _up,
        "demo": _demo,
        "effects": _group("effects"),
        "events": _group("events"),
        "evidence": _group("evidence"),
        "subscriptions": _group("subscriptions"),
        "receipts": _group("receipts"),
        "contracts": _contracts,
        "tenants": _group("tenants", "tenants_app"),
        "keys": _keys,
        "callers": _group("callers"),
        "holds": _group("holds"),
        "decisions": _group("decisions"),
        "drill": _group("drill"),
        "database": _group("database"),
        "mcp": _group("mcp"),
    }


app = typer.Typer(
    name="effect-broker",
    cls=_Root,
    help="A correctness boundary for tool calls that change the outside world.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """A correctness boundary for tool calls that change the outside world."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _sentence(problem: Exception) -> str | None:
    """What to say of an error whose text was written for the reader; None for all others."""
    from effect_broker.config import ConfigurationProblem
    from effect_broker.faultpoints import FaultSpecInvalid
    from effect_broker.keyring import KeyRingProblem
    from effect_broker.postgres.choice import PostgresNotFound
    from effect_broker.protocol.ports import EffectMissing, StoreError, VaultError
    from effect_contracts.errors import EffectError

    match problem:
        case (
            ConfigurationProblem()
            | FaultSpecInvalid()
            | KeyRingProblem()
            | PostgresNotFound()
            | VaultError()
            | EffectError()
        ):
            return str(problem)
        case EffectMissing():
            return "there is no such effect for this tenant"
        case StoreError():
            return (
                f"the database could not be used ({type(problem).__name__}: {problem}); "
                "check the URL, and that `effect-broker migrate` has run"
            )
    return None


def main() -> None:
    """Run the command line; no traceback reaches a user."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as problem:
        said = _sentence(problem)
        if said is not None:
            complain(said)
        # The frames help us, the text might hold a secret or an argument.
        frames = "".join(traceback.format_tb(problem.__traceback__))
        logging.getLogger(__name__).debug("unexpected %s\n%s", type(problem).__name__, frames)
        complain(
            f"unexpected {type(problem).__name__}; "
            "run again with EFFECT_BROKER_LOG_LEVEL=DEBUG for the place"
        )
