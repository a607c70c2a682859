"""Fleets of emulated devices on a virtual clock."""
