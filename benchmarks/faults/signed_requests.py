"""Requests to a SuperLink's fleet API with a key's signature, as a SuperNode makes them."""

import ssl
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

_SECONDS = 60.0


def connect(superlink: str, ca: Path) -> httpx.Client:
    """Return an HTTP client for a SuperLink (host:port) that trusts an authority's certificate."""
    trusted = ssl.create_default_context(cafile=str(ca))
    return httpx.Client(base_url=f"https://{superlink}", verify=trusted, timeout=_SECONDS)


def signed_headers(private: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    """Return a request's headers, signed with a key at the current time."""
    timestamp = datetime.now(UTC).isoformat()
    signature = private.sign(timestamp.encode(), ec.ECDSA(SHA256()))
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return {
        "content-type": "application/protobuf",
        "flwr-public-key": b64encode(public).decode(),
        "flwr-timestamp": timestamp,
        "flwr-signature": b64encode(signature).decode(),
    }


def send_signed(
    http: httpx.Client, private: ec.EllipticCurvePrivateKey, path: str, body: bytes
) -> int:
    """Send a request to the fleet API and return the status of the answer."""
    headers = signed_headers(private)
    return http.post(f"/v1/fleet/{path}", content=body, headers=headers).status_code


def is_refused(superlink: str, ca: Path, private: ec.EllipticCurvePrivateKey) -> bool:
    """Return whether a SuperLink refuses a key before it reads the request's body.

    Raises:
        AssertionError: if the SuperLink refuses neither the key nor the body, which is invalid.
    """
    with connect(superlink, ca) as http:
        status = send_signed(http, private, "push-messages", b"\xff")
    assert status in (400, 401), f"status {status}"
    return status == 401
