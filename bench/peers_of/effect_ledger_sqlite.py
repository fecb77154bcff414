"""effect-ledger with its SQLite store, for processes on one host; else as `effect_ledger`."""

from bench.peers_of.effect_ledger import EffectLedger
from bench.peers_of.program import main


class EffectLedgerSqlite(EffectLedger):
    """The store that its README begins with."""

    sqlite = True


if __name__ == "__main__":
    main(EffectLedgerSqlite)
