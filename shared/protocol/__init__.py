"""The protocol: directions, replay, layouts, frames, the ledger."""
