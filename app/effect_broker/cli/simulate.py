"""`effect-broker contracts simulate`: what a contract gives under each fault, before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from effect_broker.cli.contracts import document_of
from effect_broker.cli.output import (
    AsJson,
    complain,
    console,
    end_progress,
    print_json,
    print_table,
    tell_progress,
)
from effect_contracts.counting import counted

if TYPE_CHECKING:
    from effect_broker.proof.simulation.verdicts import Verdict
    from effect_contracts.document import ContractDocument


def register(app: typer.Typer) -> None:
    """Add the command to `contracts`."""
    app.command("simulate")(simulate)


def simulate(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The contract, as YAML; - is standard input.")
    ],
    schedules: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Schedules to try under each fault.")
    ] = 400,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    stories: Annotated[
        bool, typer.Option(help="Print the shortest story of every harm that was found.")
    ] = False,
    replay: Annotated[
        str | None,
        typer.Option(metavar="FAULT@PICKS", help="Tell one schedule again, as a report names it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a contract's class and numbers under every fault: can it duplicate, omit or park?

    No target is contacted: a simulated one stands in, and the broker's own code runs against it.
    Exit 1 if the file is no valid contract.
    """
    document = document_of(file)
    if replay is not None:
        _tell(document, replay, as_json)
        return
    from effect_broker.proof.simulation.verdicts import verdicts

    found = []
    for verdict in verdicts(document, schedules, seed):
        found.append(verdict)
        if not as_json:
            tell_progress(f"tried {counted(len(found), 'fault')}")
    end_progress()
    if as_json:
        print_json(_report(document, found, seed))
    else:
        _print(document, found, stories)
    if any(verdict.broken for verdict in found):
        complain("the broker broke one of its own rules: please report the story above")


def _tell(document: ContractDocument, word: str, as_json: bool) -> None:
    from effect_broker.proof.simulation.scope import Fault
    from effect_broker.proof.simulation.shrinking import read
    from effect_broker.proof.simulation.verdicts import harms_of, replayed

    name, _, picks = word.partition("@")
    try:
        fault = None if name == "none" else Fault(name)
        outcome = replayed(document, fault, read(picks))
    except ValueError:
        complain("--replay takes FAULT@PICKS as a report prints it, for example death@z4.1")
    harms = sorted(harm.value for harm in harms_of(outcome))
    if as_json:
        print_json({"harms": harms, "story": outcome.story})
        return
    for line in outcome.story:
        console().print(line)
    console().print(f"harm: {', '.join(harms) or 'none'}")


def _print(document: ContractDocument, found: list[Verdict], stories: bool) -> None:
    from effect_broker.proof.simulation.verdicts import Harm

    columns = ["fault", "duplicate", "omission", "parked", "false receipt", "what happens"]
    for breaks, title in (
        (False, "What the broker has to bear"),
        (True, "Promises that the target or the machine breaks, with the usual troubles"),
    ):
        rows = [
            (
                verdict.fault.value if verdict.fault else "none",
                *("possible" if harm in verdict.harms else "no" for harm in Harm),
                _words(verdict),
            )
            for verdict in found
            if verdict.breaks_promise is breaks
        ]
        if rows:
            print_table(f"{document.name} {document.version}: {title}", columns, rows)
    most = max(verdict.schedules for verdict in found)
    console().print(
        f"“no” means: not in {counted(most, 'schedule')}. A parked effect waits for a person; "
        "nothing is sent again behind their back."
    )
    for verdict in found:
        for line in verdict.broken:
            console().print(line)
        for harm, story in verdict.harms.items() if stories else ():
            console().print(f"\n{_name(verdict)}: {harm.value.replace('_', ' ')}")
            for line in story.story:
                console().print(line)
            console().print(f"  --replay {_replay(verdict, story.picks)}")
    if not stories:
        console().print("--stories prints the shortest story of each.")


def _words(verdict: Verdict) -> str:
    from effect_broker.proof.simulation.scope import WORDS

    return WORDS[verdict.fault] if verdict.fault else "nothing goes wrong"


def _name(verdict: Verdict) -> str:
    return verdict.fault.value if verdict.fault else "none"


def _replay(verdict: Verdict, picks: tuple[int, ...]) -> str:
    from effect_broker.proof.simulation.shrinking import spelled

    return f"{_name(verdict)}@{spelled(picks)}"


def _report(document: ContractDocument, found: list[Verdict], seed: int) -> dict[str, Any]:
    from effect_broker.proof.simulation.verdicts import Harm

    return {
        "contract": {
            "name": document.name,
            "version": document.version,
            "tool": document.tool,
            "safety": document.safety.value,
            "digest": document.digest().hex(),
        },
        "first_seed": seed,
        "faults": [
            {
                "fault": _name(verdict),
                "what_happens": _words(verdict),
                "breaks_a_promise": verdict.breaks_promise,
                "schedules": verdict.schedules,
                "harms": {
                    harm.value: (
                        {
                            "story": list(verdict.harms[harm].story),
                            "replay": _replay(verdict, verdict.harms[harm].picks),
                        }
                        if harm in verdict.harms
                        else None
                    )
                    for harm in Harm
                },
                "broken": list(verdict.broken),
            }
            for verdict in found
        ],
    }
