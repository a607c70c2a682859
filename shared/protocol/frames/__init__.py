"""Frames: the bytes that server and clients exchange (docs/reference/wire.md)."""
