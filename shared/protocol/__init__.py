"""The protocol of server and clients: directions, replay, layouts, frames and the ledger."""
