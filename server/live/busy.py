"""Errors of requests to Flower's SuperLink: refusals and timeouts."""

from samara.shared.errors import SamaraError


class NoAnswerError(SamaraError):
    """Raised if the SuperLink does not answer in time; on a busy machine it may still answer."""


def explain_http_error(error: Exception) -> SamaraError:
    """Convert an error of a request to the SuperLink to a `SamaraError` that states the reason.

    Args:
        error: an `httpx.HTTPError`.
    """
    import httpx

    response = getattr(error, "response", None)
    reason = response.text.strip() if response is not None and response.text else str(error)
    kind = NoAnswerError if isinstance(error, httpx.TimeoutException) else SamaraError
    return kind(f"Flower's SuperLink: {reason}")
