"""The crash matrix: class of target × place × fault, each cell with real processes.

    axes      what the cells are, and which are left out and why
    expected  what has to come out, as a table of rules
    targets   the contracts and the modes of the target for each class
    lane      one broker on a Postgres of its own, on which cells run one after the other
    leads     what brings an effect to a place that a plain submit does not come to
    faults    how each fault is made to happen while a process waits at its place
    cells     one cell from submit to count
    judge     what was seen against what had to come out, and against the guarantees of every cell
    report    table and JSON
    runner    several lanes at once

The command is `effect-broker demo crash-matrix`; `docs/crash-matrix.md` says how to read it.
"""
