"""The ledger: the log from which a track's model is rebuilt (docs/reference/ledger.md)."""
