"""Polling delay that grows while nothing arrives."""

LEAST_PAUSE = 0.02
"""Shortest polling delay in seconds."""
_SHARE = 20.0


def pause_before_asking(waited: float, longest: float) -> float:
    """Return the seconds until the next poll: usually a twentieth of the time waited so far.

    So polls become rare during a long wait, and an arrival is noticed about 5 % late at most.

    Args:
        waited: seconds since the last arrival, or since the first poll.
        longest: longest delay in seconds.
    """
    return min(max(waited / _SHARE, LEAST_PAUSE), longest)
