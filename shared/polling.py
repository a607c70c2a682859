"""Pauses between questions for what may have come: the longer nothing has, the longer."""

LEAST_PAUSE = 0.02
"""Seconds between two questions while answers come quickly."""
_SHARE = 20.0


def pause_before_asking(waited: float, longest: float) -> float:
    """Return the seconds to wait before asking again, a twentieth of the time waited so far.

    So what comes is late by a twentieth of its time at most, and asking costs little.

    Args:
        waited: seconds since something came, or since it was first asked for.
        longest: most seconds to wait.
    """
    return min(max(waited / _SHARE, LEAST_PAUSE), longest)
