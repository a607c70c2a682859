"""The files that a gateway's page server publishes: the files of the page and of the program.

A request can only name one of these files, so no path in a request leads to another file.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from samara.devices.phone.program_index import INDEX_PATH, PROGRAM_PATH, ProgramIndex, index_file
from samara.shared.errors import DeviceError

INTEGRITY_FILE = "integrity.json"
"""Name of the file in a page's folder that lists the page's files and their SHA-256."""
IMMUTABLE_FOLDER = "assets"
"""Folder of page files whose content never changes under the same name."""
_RESERVED = {"program", "samara", "stream"}
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_OTHER_TYPE = "application/octet-stream"


@dataclass(frozen=True)
class PublishedFile:
    """A published file.

    Attributes:
        file: path of the file on disk.
        sha256: SHA-256 of its content, 64 hex digits.
        media_type: media type of the content.
        is_immutable: whether the content never changes under this path.
    """

    file: Path
    sha256: str
    media_type: str = _OTHER_TYPE
    is_immutable: bool = False


def page_files(folder: Path) -> dict[str, PublishedFile]:
    """Return the files of a built page, including their list, by request path.

    Args:
        folder: folder of the page, with its list of files.

    Raises:
        DeviceError: if the list or a file is missing or damaged, or the list names a file that
            cannot be served.
    """
    remedy = "build the page again with `make phone-page`, or name its folder with --page"
    try:
        content = (folder / INTEGRITY_FILE).read_bytes()
        listed = json.loads(content)
        published = {f"/{name}": _page_file(folder, name, listed[name]) for name in listed}
        published["/"] = published.pop("/index.html")
        digest = hashlib.sha256(content).hexdigest()
        published[f"/{INTEGRITY_FILE}"] = PublishedFile(
            folder / INTEGRITY_FILE, digest, _MEDIA_TYPES[".json"]
        )
    except OSError as error:
        named = error.filename or folder / INTEGRITY_FILE
        raise DeviceError(f"{named}: cannot be read: {error.strerror}; {remedy}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise DeviceError(f"{folder}: not a page that can be served: {error}; {remedy}") from error
    return published


def _page_file(folder: Path, name: str, sha256: str) -> PublishedFile:
    parts = PurePosixPath(name).parts
    is_plain = "/".join(parts) == name and all(_NAME.fullmatch(part) for part in parts)
    if not is_plain or parts[0] in _RESERVED or ".." in parts:
        raise ValueError(f"{name!r} is not a path of the page")
    file = folder.joinpath(*parts)
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{name} leads out of the folder")
    _check_hash(file, sha256)
    kind = _MEDIA_TYPES.get(file.suffix.lower(), _OTHER_TYPE)
    return PublishedFile(file, sha256, kind, parts[0] == IMMUTABLE_FOLDER)


def program_files(program: Path) -> dict[str, PublishedFile]:
    """Return the files of a program for browsers by request path.

    Args:
        program: program from ``samara phone export --runtime onnx``, with its index beside it.

    Raises:
        DeviceError: if a file is missing, or differs from the index.
    """
    index = index_file(program)
    listed = ProgramIndex.read(program).files(program)
    published = {}
    try:
        content = index.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        published[INDEX_PATH] = PublishedFile(index, digest, _MEDIA_TYPES[".json"])
        for file, sha256 in listed:
            _check_hash(file, sha256)
            path = f"{PROGRAM_PATH}/{sha256}"
            published[path] = PublishedFile(file, sha256, is_immutable=True)
    except OSError as error:
        raise DeviceError(
            f"{error.filename}: the program's file cannot be read: "
            f"{error.strerror}; export the program again"
        ) from error
    except ValueError as error:
        raise DeviceError(f"{index}: {error}; export the program again") from error
    return published


def _check_hash(file: Path, sha256: str) -> None:
    """Raise a ValueError if a file's SHA-256 differs, or an OSError if the file cannot be read."""
    with file.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != sha256:
            raise ValueError(f"{file} differs from its listed SHA-256")
