"""The target for demo, tests and benchmarks: an HTTP service that fails as it is told to.

It has a durable ledger of its own, which is the truth about what arrived and what was done:
requests at the target and effects at the target are counted here and nowhere else.

* `faults`: the grammar of what may go wrong, as text;  `endings`: what the client then sees
* `modes`: how a kind treats keys and look-ups;  `service`: what the API means
* `ledger`: the SQLite file;  `server`, `wire`: sockets and HTTP;  `control`: the control API
* `client.TargetClient`, `process.TargetProcess`: for those who use it
"""
