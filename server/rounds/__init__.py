"""Rounds of a run: selecting clients, sending instructions, and applying the replies."""
