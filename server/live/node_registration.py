"""The registration of many keys with Flower's SuperLink, some hundred in a request.

Flower's control API registers one key in a request, each of which costs its server some ten
milliseconds: minutes for ten thousand clients. Here `request_registration` sends them together, and
in the SuperLink's process `answer_registration` calls Flower's own function for each.
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
"""Path that registers keys: the body is a JSON object of names by public key, PEM."""
MOST_KEYS = 500
"""Most keys of one request, so that its answer comes soon."""
_SECONDS = 120.0


def request_registration(
    address: str, authority: Path | None, headers: Mapping[str, str], names: Mapping[str, str]
) -> None:
    """Have the SuperLink at an address let the holders of keys connect.

    Args:
        address: host:port.
        authority: certificate that verifies it; None for plain text.
        headers: headers of the requests, with the secret of the control API.
        names: names by public key, PEM.

    Raises:
        SamaraError: if it does not answer, or refuses a key.
    """
    import httpx

    scheme, verify = "http", ssl.create_default_context(cafile=authority)
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
    """Register the keys of a request with the SuperLink behind an app.

    Returns:
        HTTP status, and what is wrong; empty if nothing is.
    """
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    try:
        await asyncio.to_thread(_register, app, json.loads(body))
    except Exception as error:  # Flower's reason, which is for the operator
        return 400, str(error)
    return 204, ""


def _register(app: Any, names: Mapping[str, str]) -> None:
    """Register keys for the account that a SuperLink without accounts has.

    Raises:
        Exception: if Flower refuses a key; none is registered then.
    """
    # in the SuperLink's process, which has imported all of Flower's server
    from samara.shared.flower_compat import (
        RegisterNodeRequest,
        _create_noop_account_info,
        register_node,
    )

    state, account = app.state.linkstate_factory.state(), _create_noop_account_info()
    with state.session():  # one transaction
        for public_key, name in names.items():
            request = RegisterNodeRequest(public_key=public_key.encode(), name=name)
            register_node(request, account, state)
