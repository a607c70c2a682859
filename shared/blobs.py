"""Blobs that settings name: by a path on this machine, or by a hash that is the same on all.

A setting declares with `blob` that its value names a file (`samara.shared.settings.setting`). A
server stores these files and puts their hashes in place of the paths; clients look the hashes up in
their own store, and what is missing there is sent to them (docs/reference/wire.md).
"""

from pathlib import Path
from typing import TypeVar

from samara.shared.blob_store import BlobStore, parse_reference, to_reference
from samara.shared.errors import BlobError, ConfigError, MissingBlobError
from samara.shared.settings import Setting, Settings, describe

S = TypeVar("S", bound=Settings)


def resolve_blob(value: str, store: BlobStore, key: str) -> Path:
    """Return the file that a setting's value names.

    A folder means the file of the setting's name in it: ``RUN`` of `adapter.start` is
    ``RUN/start.safetensors``.

    Args:
        value: a path, or ``sha256:HEX``.
        store: store in which hashes are looked up.
        key: dotted key of the setting, for error messages.

    Raises:
        ConfigError: if the value is neither a file nor a hash.
        MissingBlobError: if the store lacks the blob.
    """
    try:
        blob = parse_reference(value)
    except BlobError as error:
        raise ConfigError(f"{key}: {error}") from error
    if blob is None:
        path = Path(value).expanduser()
        if path.is_dir():
            path /= f"{key.rpartition('.')[2]}.safetensors"
        if not path.is_file():
            raise ConfigError(f"{key}: {path}: there is no such file")
        return path
    if stored := store.find(blob):
        return stored
    raise MissingBlobError(
        f"{key}: blob {blob.hex()[:12]} is not in {store.folder}; the server of a live run sends "
        "it, elsewhere give the path of its file",
        (int.from_bytes(blob[:4]), store.received_bytes(blob)),
    )


def blob_settings(config: Settings) -> dict[str, str]:
    """Return the values of the settings that name a file, by dotted key.

    Those that are empty or one of the setting's words are left out.
    """
    described = describe(type(config))
    return {
        key: value
        for key, value in file_settings(config).items()
        if _names_a_file(described[key], value)
    }


def file_settings(config: Settings) -> dict[str, str]:
    """Return the values of all settings that may name a file, by dotted key."""
    described, flat = describe(type(config)), config.flat()
    return {key: str(flat[key]) for key, setting in described.items() if setting.blob}


def _names_a_file(setting: Setting, value: str) -> bool:
    return bool(value) and value not in setting.words


def published_blobs(config: Settings) -> dict[str, bytes]:
    """Return the hashes that settings name, by dotted key; settings from a network hold no paths.

    Raises:
        ConfigError: if a value is not a hash.
    """
    blobs = {}
    for key, value in blob_settings(config).items():
        try:
            blob = parse_reference(value)
        except BlobError as error:
            raise ConfigError(f"{key}: {error}") from error
        if blob is None:
            raise ConfigError(
                f"{key}: {value!r} names a file on another machine; start the run with "
                "`samara server up`, which sends the file to its clients"
            )
        blobs[key] = blob
    return blobs


def publish_blobs(config: S, store: BlobStore) -> S:
    """Store the files that settings name, and return settings with hashes in place of paths.

    Raises:
        ConfigError: if a file cannot be read or is too large, or a hash is not in the store.
    """
    changes = {}
    for key, value in blob_settings(config).items():
        path = resolve_blob(value, store, key)
        try:
            changes[key] = to_reference(store.add(path))
        except BlobError as error:
            raise ConfigError(f"{key}: {error}") from error
    return config.with_values(changes) if changes else config


def with_local_blobs(config: S, store: BlobStore) -> S:
    """Return settings with the paths of stored files in place of hashes.

    Raises:
        ConfigError: if a value is neither a file nor a hash.
        MissingBlobError: if the store lacks a blob.
    """
    changes = {
        key: str(resolve_blob(value, store, key)) for key, value in blob_settings(config).items()
    }
    return config.with_values(changes) if changes else config
