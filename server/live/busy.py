"""Errors of requests to Flower's SuperLink: refusals and timeouts."""

from samara.shared.errors import SamaraError


class NoAnswerError(SamaraError):
    """The SuperLink did not answer in time; on a busy machine, the answer may still come."""


def explain_http_error(error: Exception) -> SamaraError:
    """Convert an error of a request to the SuperLink.

    Args:
        error: an `httpx.HTTPError`.
    """
    import httpx

    response = getattr(error, "response", None)
    reason = response.text.strip() if response is not None and response.text else str(error)
    kind = NoAnswerError if isinstance(error, httpx.TimeoutException) else SamaraError
    return kind(f"Flower's SuperLink: {reason}")
