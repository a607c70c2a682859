"""Federations on one machine."""
