"""Brokers with one bug each, for the tests of the auditor: what it does not catch, it cannot judge.

    python -m effect_chaos.planted BUG worker|serve …

patches a function or two of the product and then runs the ordinary command line. Processes,
Postgres and target are the real ones. `bugs` lists the bugs and the rules that have to see them,
`worker_bugs` and `api_bugs` hold the patches, `scenarios` what brings each of them to light, and
`stage` runs a scenario on a broken or on a sound broker.

This is the one part of chaos that imports the product, since it breaks it. It is run, and nothing
else of chaos imports it.
"""
