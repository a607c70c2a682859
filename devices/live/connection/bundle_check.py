"""Comparison of the server's Samara version with the installed one, for the log.

A SuperLink sends an app bundle to its clients. The bundle contains no code, and a client would not
run any: the installed ClientApp answers messages (devices/live/connection/executor.py). The version
in every frame (shared/protocol/wire.py) decides whether two versions understand each other
(docs/decisions/0026).
"""

import io
import tomllib
import zipfile
import zlib
from typing import Any

from samara.shared.machine.installed_code import client_code_hash, samara_version

_APP_FILE = "pyproject.toml"
_MAX_FILE_BYTES = 10 * 2**20
_LONGEST = 40
_UNREADABLE = (zipfile.BadZipFile, zlib.error, ValueError, KeyError, RuntimeError, OSError)
"""Errors of reading a file in a zip file; unknown compression raises a RuntimeError."""
_VERSION = ("project", "version")
_CODE = ("tool", "samara", "client-code")


def describe_difference(bundle: bytes) -> str:
    """Describe the difference between the server's and the installed version; empty if equal.

    Args:
        bundle: app bundle (zip) as the SuperLink ships it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            entry = archive.getinfo(_APP_FILE)
            if entry.file_size > _MAX_FILE_BYTES:
                return f"{_APP_FILE} has {entry.file_size} bytes"
            app = tomllib.loads(archive.read(entry).decode())
    except _UNREADABLE as error:
        return f"its app cannot be read: {error}"
    theirs = _text(app, *_VERSION), _text(app, *_CODE)
    ours = samara_version(), client_code_hash()
    if theirs == ours:
        return ""
    return f"{_describe(*theirs)}, and here {_describe(*ours)}"


def _describe(version: str, code: str) -> str:
    return f"{version!r} with code {code!r}" if code else f"{version!r}"


def _text(content: Any, *keys: str) -> str:
    """Return a string from nested tables, or an empty one if it is missing."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content[:_LONGEST] if isinstance(content, str) else ""
