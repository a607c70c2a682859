"""Frames: the bytes that server and clients exchange; docs/wire.md describes each of them."""
