"""The errors of requests to Flower's SuperLink: a refusal, or no answer in time."""

from samara.shared.errors import SamaraError


class NoAnswerError(SamaraError):
    """The SuperLink did not answer in time; on a busy machine it may yet."""


def explain_http_error(error: Exception) -> SamaraError:
    """Return the error of a request to the SuperLink.

    Args:
        error: an `httpx.HTTPError`.
    """
    import httpx

    response = getattr(error, "response", None)
    reason = response.text.strip() if response is not None and response.text else str(error)
    kind = NoAnswerError if isinstance(error, httpx.TimeoutException) else SamaraError
    return kind(f"Flower's SuperLink: {reason}")
