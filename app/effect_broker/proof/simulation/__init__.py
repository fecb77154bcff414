"""The deterministic simulator: the protocol's own code under a scheduler that owns all chance.

    choices     all chance of a schedule as one list of numbers
    scope       what a world contains: contract, faults, sizes
    world       time, store, processes and what they may do next
    target      the outside: a ledger that is the truth, with faults and lies
    invariants  what must hold, and how often it was tried
    schedule    one schedule: seeded walk, replay, or one path of the exploration
    exploration every schedule of a small world
    shrinking   from a violation to a short one
    guards      the guards of the protocol, each of which can be switched off
    campaign    many schedules on many cores, and their report
    verdicts    what a contract document gives under each fault

Nothing here decides anything about an effect. Plans, steps, `decide`, `drive` and repair are the
shipped ones; only time, chance and trouble are made here.
"""
