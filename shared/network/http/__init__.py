"""Shared parts of Samara's HTTP servers: access guard, connections, tokens and sockets."""
