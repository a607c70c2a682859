"""A rehearsal: a real server and real clients on this machine, each held to its device's limits."""
