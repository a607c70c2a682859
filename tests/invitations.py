"""A run that invites devices: its folder with certificates, and its server over TLS."""

import json
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from live import serve_app

from samara.devices.live.keys import create_key
from samara.server.live.invitations import Invitations, invite_client
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.live.superlink import AccessFilter
from samara.shared.network.certificates import CERTIFICATES_FOLDER, make_certificates
from samara.shared.network.invitation import JOIN_PATH, InvitationCode, JoinRequest, join_proof
from samara.shared.protocol.signing import SigningKey

SOON = timedelta(hours=1)


def new_run(folder: Path) -> Path:
    """Make a run's folder that contains only certificates; return the folder."""
    folder.mkdir()
    make_certificates(folder / CERTIFICATES_FOLDER, [])
    return folder


def authority_of(run: Path) -> Path:
    """The certificate that verifies a run's server, PEM."""
    return run / CERTIFICATES_FOLDER / "ca.pem"


def serve(app: Any, run: Path) -> AbstractContextManager[str]:
    """Serve an app over TLS with the certificate of a run; yield the address."""
    return serve_app(app, make_certificates(run / CERTIFICATES_FOLDER, []))


async def no_flower(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("this request is none of Flower's")


def access_to(run: Path) -> AccessFilter:
    """The filter in front of Flower's app, for a server with keys and invitations."""
    keys = ClientKeys(run / KEYS_FOLDER)
    return AccessFilter(no_flower, 10_000, keys, b"secret", Invitations(run))


def invite(run: Path, name: str = "kitchen", scenario: Path | None = None) -> InvitationCode:
    return invite_client(run, name, authority_of(run), scenario, datetime.now(UTC) + SOON)


def names(run: Path) -> list[str]:
    return [key.name for key in ClientKeys(run / KEYS_FOLDER).read_all()]


def post(address: str, body: bytes) -> int:
    answer = httpx.post(f"https://{address}{JOIN_PATH}", content=body, verify=False)
    assert not answer.is_success or json.loads(answer.content).keys() <= {"name", "task", "model"}
    return answer.status_code


def request_of(code: InvitationCode, key: Path) -> JoinRequest:
    create_key(key)
    signing = SigningKey(key)
    return JoinRequest(code.secret, signing.public, signing.sign(join_proof(code.secret)))
