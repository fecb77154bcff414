"""The root of the command line, and the one boundary at which errors become sentences.

Exit codes: 0 done, 1 it did not work (the text says what to do), 2 the command was not understood,
3 the answer is "not yet" or "not known" (`effects wait`), 4 nothing could be tried from here, so
that nothing was learned (`contracts conformance`, `contracts certify`), 130 interrupted.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Annotated

import typer

from effect_broker import __version__
from effect_broker.cli import (
    callers,
    certificates,
    certification,
    conformance,
    contracts,
    database,
    decisions,
    doctor,
    drill,
    effects,
    events,
    evidence,
    holds,
    mcp,
    proofs,
    receipts,
    retention,
    servers,
    simulate,
    subscriptions,
    tenants,
    up,
)
from effect_broker.cli.output import complain
from effect_broker.config import ConfigurationProblem
from effect_broker.faultpoints import FaultSpecInvalid
from effect_broker.keyring import KeyRingProblem
from effect_broker.postgres.choice import PostgresNotFound
from effect_broker.protocol.ports import EffectMissing, StoreError, VaultError
from effect_contracts.errors import EffectError

app = typer.Typer(
    name="effect-broker",
    help="A correctness boundary for tool calls that change the outside world.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


servers.register(app)
proofs.register(app)
app.add_typer(effects.app, name="effects")
app.add_typer(events.app, name="events")
app.add_typer(evidence.app, name="evidence")
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(receipts.app, name="receipts")
conformance.register(contracts.app)
simulate.register(contracts.app)
certification.register(contracts.app)
contracts.app.add_typer(certificates.app, name="certificate")
app.add_typer(contracts.app, name="contracts")
app.add_typer(tenants.tenants_app, name="tenants")
app.add_typer(tenants.keys_app, name="keys")
app.add_typer(callers.app, name="callers")
app.add_typer(holds.app, name="holds")
app.add_typer(decisions.app, name="decisions")
app.add_typer(drill.app, name="drill")
app.add_typer(database.app, name="database")
app.add_typer(mcp.app, name="mcp")
doctor.register(app)
retention.register(app, tenants.keys_app)
up.register(app)


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


# Errors whose text was written for the reader.
_SPOKEN = (
    ConfigurationProblem,
    FaultSpecInvalid,
    KeyRingProblem,
    PostgresNotFound,
    VaultError,
    EffectError,
)


def main() -> None:
    """Run the command line; no traceback reaches a user."""
    try:
        app()
    except _SPOKEN as problem:
        complain(str(problem))
    except EffectMissing:
        complain("there is no such effect for this tenant")
    except StoreError as problem:
        complain(
            f"the database could not be used ({type(problem).__name__}: {problem}); "
            "check the URL, and that `effect-broker migrate` has run"
        )
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as problem:
        # The frames help us, the text might hold a secret or an argument.
        frames = "".join(traceback.format_tb(problem.__traceback__))
        logging.getLogger(__name__).debug("unexpected %s\n%s", type(problem).__name__, frames)
        complain(
            f"unexpected {type(problem).__name__}; "
            "run again with EFFECT_BROKER_LOG_LEVEL=DEBUG for the place"
        )
