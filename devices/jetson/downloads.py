"""Files from the network: their sizes, and fetching them so that an interruption costs little."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from samara.shared.blob_store import blob_hash
from samara.shared.errors import DeviceError

PARTIAL = ".part"
"""The suffix of files of which more is to be fetched."""
_TRIES = 5
_CONNECT_SECONDS = 30.0


@dataclass(frozen=True)
class RemoteFile:
    """A file that can be fetched.

    Attributes:
        url: address, without the part after ``#``.
        sha256: its checksum, 64 hex digits; empty if nobody states one.
        size: bytes; None if nobody states them.
    """

    url: str
    sha256: str = ""
    size: int | None = None

    @property
    def name(self) -> str:
        """The last part of the address, decoded."""
        return unquote(urlsplit(self.url).path).rsplit("/", 1)[-1]


def with_sizes(files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """Return the files with their sizes, after a request to each of their hosts.

    Raises:
        DeviceError: if a host does not answer, or does not say how large a file is.
    """
    sized, hosts = [], set[str]()
    with _connect() as client:
        for file in files:
            host = urlsplit(file.url).netloc
            asks = file.size is None or host not in hosts
            sized.append(_ask_size(client, file) if asks else file)
            hosts.add(host)
    return sized


def fetch(file: RemoteFile, target: Path, advance: Callable[[int], None]) -> str:
    """Fetch a file to a path, unless it is there; return its SHA-256.

    What an earlier call has fetched of it is not fetched again.

    Args:
        file: the file.
        target: path; the file is there only when it is whole and has its checksum.
        advance: called with the number of bytes that have come.

    Raises:
        DeviceError: if it cannot be fetched, or has another checksum.
        OSError: if it cannot be written.
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
                        f"{file.url} cannot be fetched: {error or type(error).__name__}; the same "
                        "command goes on where it stopped"
                    ) from error
    digest, size = blob_hash(partial).hex(), partial.stat().st_size
    if size != (file.size or size):
        partial.unlink()
        raise DeviceError(f"{file.url} has {size:,} bytes, and not {file.size:,}; try again")
    if file.sha256 and digest != file.sha256:
        partial.unlink()
        raise DeviceError(
            f"{file.url} has SHA-256 {digest}, and not {file.sha256}; it is deleted. Try again, "
            "and if it is so again, do not use this index"
        )
    os.replace(partial, target)
    return digest


def _fetch_rest(
    client: httpx.Client, file: RemoteFile, partial: Path, advance: Callable[[int], None]
) -> None:
    """Append to a file what it lacks of a remote one, or begin anew if the server cannot.

    Raises:
        httpx.HTTPError: if the connection breaks, or the server refuses.
    """
    have = partial.stat().st_size if partial.exists() else 0
    if file.size is not None and have == file.size:
        return
    headers = {"Range": f"bytes={have}-"} if have else {}
    with client.stream("GET", file.url, headers=headers) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is lacking; the checksum decides
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
            f"{file.url}: the server answers with status {error.response.status_code}; give "
            "another index or address"
        ) from error
    except httpx.HTTPError as error:
        raise DeviceError(
            f"no answer from {host}, which has {file.name}: {error or type(error).__name__}; check "
            "the network of this machine, and its proxy"
        ) from error
    except (KeyError, ValueError) as error:
        raise DeviceError(f"{file.url}: {host} does not say how large it is") from error
    return replace(file, size=size)


def _connect() -> httpx.Client:
    timeout = httpx.Timeout(60.0, connect=_CONNECT_SECONDS)
    # Wheels are compressed already; an encoding on the way would count other bytes.
    return httpx.Client(
        follow_redirects=True, timeout=timeout, headers={"Accept-Encoding": "identity"}
    )
