"""Registration of many keys with Flower's SuperLink, several hundred per request.

Flower's control API registers one key per request, and each request takes about ten milliseconds.
Ten thousand clients would therefore take minutes. In this module `request_registration` sends many
keys in one request, and `answer_registration` calls Flower's own function for each key in the
SuperLink's process.
"""

import asyncio
import json
import ssl
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from samara.server.live.busy import explain_http_error

REGISTRATION_PATH = "/samara/register-nodes"
"""Path for registering keys; the body is a JSON object that maps public keys (PEM) to names."""
MOST_KEYS = 500
"""Maximum number of keys in one request, so that the SuperLink answers each request soon."""
_SECONDS = 120.0


def request_registration(
    address: str, authority: Path | None, headers: Mapping[str, str], names: Mapping[str, str]
) -> None:
    """Register keys with a SuperLink, so that their holders may connect.

    Args:
        address: address of the SuperLink, host:port.
        authority: certificate authority of the SuperLink; None for plain text.
        headers: headers of the requests, with the secret of the control API.
        names: names by public key (PEM).

    Raises:
        SamaraError: if the SuperLink does not answer, or refuses a key.
    """
    import httpx

    scheme = "http"
    verify = ssl.create_default_context(cafile=authority)
    if authority:
        scheme = "https"
    left = iter(names.items())
    with httpx.Client(verify=verify, headers=headers, timeout=_SECONDS, trust_env=False) as client:
        while part := dict(islice(left, MOST_KEYS)):
            try:
                answer = client.post(f"{scheme}://{address}{REGISTRATION_PATH}", json=part)
                answer.raise_for_status()
            except httpx.HTTPError as error:
                raise explain_http_error(error) from error


async def answer_registration(app: Any, receive: Any) -> tuple[int, str]:
    """Register the public keys in a request with the SuperLink.

    Returns:
        HTTP status and error text; the text is empty on success.
    """
    body = bytearray()
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    try:
        await asyncio.to_thread(_register, app, json.loads(body))
    except Exception as error:  # Flower's errors have no common class; the operator sees the text
        return 400, str(error)
    return 204, ""


def _register(app: Any, names: Mapping[str, str]) -> None:
    """Register keys under the placeholder account of a SuperLink that has no accounts.

    Raises:
        Exception: Flower's error for a refused key; no key of the request is then registered.
    """
    # the SuperLink's process has already imported all of Flower's server
    from samara.shared.flower_compat import (
        RegisterNodeRequest,
        _create_noop_account_info,
        register_node,
    )

    state = app.state.linkstate_factory.state()
    account = _create_noop_account_info()
    with state.session():  # one transaction
        for public_key, name in names.items():
            request = RegisterNodeRequest(public_key=public_key.encode(), name=name)
            register_node(request, account, state)
