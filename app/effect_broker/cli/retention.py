"""`effect-broker prune` and `keys rotate`: what is removed of settled effects, and resealed."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from effect_broker.cli.access import Logins, logins, opened, run
from effect_broker.cli.durations import seconds_of
from effect_broker.cli.output import AsJson, complain, print_json
from effect_broker.clock import SystemClock
from effect_broker.keyring import AesVault, key_ring
from effect_broker.protocol.ports import StoreError
from effect_broker.store.retention import BEFORE_ALL, Place, Retention, Stage
from effect_broker.store.roles import DatabaseRole
from effect_contracts.counting import counted

NEVER: Final = "never"
_STAGES: Final = {Stage.ENGINE: "finished runs", Stage.PAYLOADS: "payloads", Stage.ROWS: "rows"}

AfterHelp = "Settled at least this long ago: 90s, 15m, 2h, 1d, or never."


def register(app: typer.Typer) -> None:
    """Add `prune` to the root."""
    app.command("prune")(prune)


def register_rotation(keys_app: typer.Typer) -> None:
    """Add `rotate` to the commands of keys."""
    keys_app.command("rotate")(rotate)


def prune(
    engine_after: Annotated[str, typer.Option(help=f"Runs of the engine. {AfterHelp}")] = "1d",
    payloads_after: Annotated[
        str, typer.Option(help=f"Arguments, requests, answers, previews. {AfterHelp}")
    ] = "30d",
    rows_after: Annotated[
        str, typer.Option(help=f"Attempts, evidence and events. {AfterHelp}")
    ] = "365d",
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Effects in a transaction.")] = 500,
    every: Annotated[
        str | None, typer.Option(help="Go on for ever, with this pause between two rounds.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove what is no longer needed of settled effects, in bounded batches.

    Never anything of an effect that is not settled, or that a person has to look at. Operation key,
    request hash, state and receipt stay: the key is still a replay, or a conflict.
    """
    ages = _ages(engine_after, payloads_after, rows_after)
    pause = None if every is None else seconds_of(every)
    while True:
        try:
            _round(ages, batch, as_json)
        except StoreError as problem:
            if pause is None:
                raise
            typer.echo(f"not now ({problem}); the next round goes on", err=True)
        if pause is None:
            return
        run(SystemClock().sleep(pause))


def _round(ages: dict[Stage, float], batch: int, as_json: bool) -> None:
    async def work(found: Logins) -> dict[Stage, tuple[int, int]]:
        done: dict[Stage, tuple[int, int]] = {}
        async with opened(found.of(DatabaseRole.PRUNE)) as pool:
            retention = Retention(pool)
            for stage, age_seconds in ages.items():
                effects = removed = 0
                while (pruned := await retention.prune(stage, age_seconds, batch)).effects:
                    effects += pruned.effects
                    removed += pruned.removed
                done[stage] = effects, removed
        return done

    with logins() as found:
        done = run(work(found))
    if as_json:
        print_json({s.name.lower(): {"effects": e, "removed": r} for s, (e, r) in done.items()})
        return
    for stage, (effects, removed) in done.items():
        print(f"{_STAGES[stage]}: {removed} removed, of {counted(effects, 'effect')}")


def _ages(engine_after: str, payloads_after: str, rows_after: str) -> dict[Stage, float]:
    given = {
        Stage.ENGINE: ("--engine-after", engine_after),
        Stage.PAYLOADS: ("--payloads-after", payloads_after),
        Stage.ROWS: ("--rows-after", rows_after),
    }
    ages: dict[Stage, float] = {}
    ended = False
    for stage, (option, text) in given.items():
        if text == NEVER:
            ended = True
            continue
        seconds = seconds_of(text)
        if ended or seconds < max(ages.values(), default=0.0):
            complain(f"{option} comes after the stages before it; give it a longer time", 2)
        ages[stage] = seconds
    return ages


def rotate(
    window: Annotated[int, typer.Option(min=1, max=10_000, help="Payloads in a look.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Seal stored payloads under the ring's active encryption key; it may be interrupted.

    New payloads are under the active key at once. Downstream keys never change: each effect is
    bound to the HMAC key that it was made with.
    """

    async def work(found: Logins) -> tuple[int, int, int]:
        ring = key_ring(found.settings)
        vault, active = AesVault(ring), ring.encryption.active
        read = sealed = 0
        async with opened(found.of(DatabaseRole.PRUNE)) as pool:
            retention = Retention(pool)
            place: Place | None = BEFORE_ALL
            while place is not None:
                seen = await retention.reseal(vault, active, place, window)
                read, sealed, place = read + seen.read, sealed + seen.sealed, seen.end
            secrets = await retention.reseal_secrets(vault, active)
            read, sealed = read + secrets, sealed + secrets
            return read, sealed, await retention.old_deliveries(active)

    with logins() as found:
        read, sealed, waiting = run(work(found))
    if as_json:
        print_json({"read": read, "sealed_anew": sealed, "deliveries_under_old_keys": waiting})
        return
    print(f"sealed anew under the active key: {sealed} of {counted(read, 'payload')}")
    if waiting:
        deliveries = counted(waiting, "delivery", "deliveries")
        print(f"waiting in the inbox under an old key: {deliveries}, for 7 days at most")
