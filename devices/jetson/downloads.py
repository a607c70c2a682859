"""Downloads of remote files that survive interruption, and the files' sizes."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from samara.shared.errors import DeviceError
from samara.shared.storage.blob_store import blob_hash

PARTIAL = ".part"
"""Suffix of partially downloaded files."""
_TRIES = 5
_CONNECT_SECONDS = 30.0


@dataclass(frozen=True)
class RemoteFile:
    """A file that can be downloaded.

    Attributes:
        url: address, without a fragment after ``#``.
        sha256: checksum, 64 hex digits; empty if none is stated.
        size: bytes; None if not stated.
    """

    url: str
    sha256: str = ""
    size: int | None = None

    @property
    def name(self) -> str:
        """The last part of the address, with URL encoding removed."""
        return unquote(urlsplit(self.url).path).rsplit("/", 1)[-1]


def with_sizes(files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """Return the files with their sizes, after asking each host.

    Raises:
        DeviceError: if a host does not answer, or does not state a file's size.
    """
    sized = []
    hosts = set[str]()
    with _connect() as client:
        for file in files:
            host = urlsplit(file.url).netloc
            asks = file.size is None or host not in hosts
            sized.append(_ask_size(client, file) if asks else file)
            hosts.add(host)
    return sized


def fetch(file: RemoteFile, target: Path, advance: Callable[[int], None]) -> str:
    """Download a file to a path, unless the path exists; return the file's SHA-256.

    Bytes that an earlier call has downloaded are not requested again.

    Args:
        file: file to download.
        target: destination, which exists only once the file is complete and matches its checksum.
        advance: function that is called with the number of bytes received.

    Raises:
        DeviceError: if the file cannot be downloaded, or has another checksum.
        OSError: if the file cannot be written.
    """
    if target.exists():
        digest = blob_hash(target).hex()
        if not file.sha256 or digest == file.sha256:
            advance(target.stat().st_size)
            return digest
        target.unlink()
    partial = target.with_name(target.name + PARTIAL)
    if partial.exists():
        advance(partial.stat().st_size)
    with _connect() as client:
        for attempt in range(_TRIES):
            try:
                _fetch_rest(client, file, partial, advance)
                break
            except httpx.HTTPStatusError as error:
                raise DeviceError(
                    f"{file.url}: the server answers with status {error.response.status_code}; "
                    "try again later, or give another index"
                ) from error
            except httpx.HTTPError as error:
                if attempt == _TRIES - 1:
                    raise DeviceError(
                        f"{file.url} cannot be fetched: {error or type(error).__name__}; run the "
                        f"same command again to continue"
                    ) from error
    digest = blob_hash(partial).hex()
    size = partial.stat().st_size
    if size != (file.size or size):
        partial.unlink()
        raise DeviceError(f"{file.url} has {size:,} bytes instead of {file.size:,}; try again")
    if file.sha256 and digest != file.sha256:
        partial.unlink()
        raise DeviceError(
            f"{file.url} has SHA-256 {digest} instead of {file.sha256} and was deleted. Try again; "
            "if the hash is wrong again, do not use this index"
        )
    os.replace(partial, target)
    return digest


def _fetch_rest(
    client: httpx.Client, file: RemoteFile, partial: Path, advance: Callable[[int], None]
) -> None:
    """Append the missing bytes to a partial file, or start over if the server cannot resume.

    Raises:
        httpx.HTTPError: if the connection breaks, or the server refuses.
    """
    have = partial.stat().st_size if partial.exists() else 0
    if file.size is not None and have == file.size:
        return
    headers = {"Range": f"bytes={have}-"} if have else {}
    with client.stream("GET", file.url, headers=headers) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is missing; the checksum decides
        response.raise_for_status()
        if have and response.status_code != httpx.codes.PARTIAL_CONTENT:
            partial.unlink()
            advance(-have)
        with partial.open("ab") as out:
            for piece in response.iter_raw():
                out.write(piece)
                advance(len(piece))
            out.flush()
            os.fsync(out.fileno())


def _ask_size(client: httpx.Client, file: RemoteFile) -> RemoteFile:
    host = urlsplit(file.url).netloc
    try:
        response = client.head(file.url).raise_for_status()
        size = int(response.headers["content-length"])
    except httpx.HTTPStatusError as error:
        raise DeviceError(
            f"{file.url}: the server answered with status {error.response.status_code}; give "
            "another package index (--torch-index) or another address of the file (--torch-wheel)"
        ) from error
    except httpx.HTTPError as error:
        raise DeviceError(
            f"no answer from {host}, which has {file.name}: {error or type(error).__name__}; check "
            "the network of this machine, and its proxy"
        ) from error
    except (KeyError, ValueError) as error:
        raise DeviceError(
            f"{file.url}: {host} does not state the size of this file; give another package index"
        ) from error
    return replace(file, size=size)


def _connect() -> httpx.Client:
    timeout = httpx.Timeout(60.0, connect=_CONNECT_SECONDS)
    # Wheels are already compressed, and a transfer encoding would change the byte counts.
    return httpx.Client(
        follow_redirects=True, timeout=timeout, headers={"Accept-Encoding": "identity"}
    )
