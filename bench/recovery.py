"""What trouble costs: a killed worker, a crash of the database, an outage of the target.

Each is taken once, at its full size, whatever the number of rounds: a distribution over many kills
is its own repetition, and a backlog of thousands is long enough to be its own average.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import ceil

from bench.killed import kills
from bench.outage import Drain, drain
from bench.parts import Findings, Ground, Table
from bench.report import Ratio
from bench.restarted import Restarted, restart


def at_share(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is not below this share of all (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def measure(ground: Ground) -> Findings:
    """Kill workers, crash the database, and drain a backlog."""
    print("  killed workers", file=sys.stderr, flush=True)
    killed = kills(ground)
    print("  a crash of the database", file=sys.stderr, flush=True)
    crashed = restart(ground)
    print("  a backlog after an outage", file=sys.stderr, flush=True)
    drained = drain(ground)
    shown = {
        "kill_min": min(killed),
        "kill_median": at_share(killed, 0.5),
        "kill_p90": at_share(killed, 0.9),
        "kill_max": max(killed),
    }
    figures = {
        **shown,
        "kills": len(killed),
        "restart_rate_before": crashed.per_second_before,
        "restart_down_seconds": crashed.down_seconds,
        "restart_recovered_seconds": crashed.recovered_seconds,
        "backlog": drained.backlog,
        "backlog_per_second": drained.per_second,
        "greatest_at_once": drained.seen.greatest_at_once,
        "greatest_in_a_second": drained.seen.greatest_in_a_second,
        "single_idle_median_ms": at_share(drained.idle_ms, 0.5),
        "single_idle_max_ms": max(drained.idle_ms),
        "single_beside_median_ms": at_share(drained.beside_ms, 0.5),
        "single_beside_max_ms": max(drained.beside_ms),
    }
    tables = (_killed(killed, shown), _restarted(crashed), _limits(drained), _singles(drained))
    return Findings(
        _ratios(drained), {name: round(value, 3) for name, value in figures.items()}, tables
    )


def _ratios(drained: Drain) -> list[Ratio]:
    return [
        Ratio(
            "single_beside_backlog_to_idle",
            "one tenant's effect beside another's backlog, time to idle",
            at_share(drained.beside_ms, 0.5) / at_share(drained.idle_ms, 0.5),
            more_is_better=False,
        )
    ]


def _killed(killed: Sequence[float], shown: dict[str, float]) -> Table:
    return Table(
        "From SIGKILL to settled",
        ("kills", "least", "median", "90 %", "greatest"),
        [[str(len(killed)), *(f"{seconds:.1f} s" for seconds in shown.values())]],
        "One effect and one kill at a time, after the target has committed and before the outcome"
        " is stored; a second worker runs, and another one is started in the place of the killed"
        " one at once. The attempt's deadline is 1.5 s and its margin 0.2 s, a worker is dead after"
        " 3 s without a heartbeat. The target has counted two requests and one effect for each.",
    )


def _restarted(crashed: Restarted) -> Table:
    return Table(
        "A crash of the database under load",
        ("what", "measured"),
        [
            ["effects/s before", f"{crashed.per_second_before:.0f}"],
            ["the server was away", f"{crashed.down_seconds:.1f} s"],
            ["from the crash to the first receipt", f"{crashed.first_seconds:.1f} s"],
            ["from the crash to 90 % of the rate", f"{crashed.recovered_seconds:.1f} s"],
            ["effects/s after that", f"{crashed.per_second_after:.0f}"],
            ["greatest gap between accepted submits", f"{crashed.submit_gap_seconds:.1f} s"],
            ["submits refused meanwhile, and repeated", f"{crashed.refused}"],
        ],
        "`immediate`: the server drops everything and recovers from its log. Two workers drain a"
        " backlog, and a caller submits ten a second. A rate is that of two seconds.",
    )


def _limits(drained: Drain) -> Table:
    rows = [
        ["effects that waited when the target came back", f"{drained.backlog}"],
        ["until all were settled", f"{drained.seconds:.0f} s"],
        ["effects/s", f"{drained.per_second:.0f}"],
        [
            "requests at once at the target, greatest",
            f"{drained.seen.greatest_at_once} of {drained.at_once_max} permitted",
        ],
        [
            "requests within a second at the target, greatest",
            f"{drained.seen.greatest_in_a_second} of {drained.in_a_second_max} permitted",
        ],
        [
            "requests and distinct keys at the target",
            f"{drained.seen.requests} and {drained.seen.keys}",
        ],
    ]
    return Table(
        "A backlog after an outage of the target",
        ("what", "measured"),
        rows,
        f"The target has refused connections for {drained.outage_seconds:.0f} s while all were"
        f" submitted and two workers went on trying. {drained.limits}",
    )


def _singles(drained: Drain) -> Table:
    rows = [
        [
            words,
            str(len(taken)),
            f"{at_share(taken, 0.5):.0f}",
            f"{at_share(taken, 0.9):.0f}",
            f"{max(taken):.0f}",
        ]
        for words, taken in (
            ("on an idle broker", drained.idle_ms),
            ("while the backlog drains", drained.beside_ms),
        )
    ]
    late = at_share(drained.beside_ms, 0.5) - at_share(drained.idle_ms, 0.5)
    latest = max(drained.beside_ms) - max(drained.idle_ms)
    return Table(
        "Another tenant's single effects meanwhile, submit to settled",
        ("when", "effects", "median ms", "90 % ms", "greatest ms"),
        rows,
        f"Later than on an idle broker: {late:.0f} ms in the median, {latest:.0f} ms the greatest."
        " The bar is 1,000 ms.",
    )
