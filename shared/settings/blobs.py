"""Files that settings name: a server replaces their paths by hashes, and a client finds the files.

A setting that names a file is declared with `blob` (`samara.shared.settings.setting`). A server
copies the file into its blob store, and replaces the path in the setting by the file's hash. A
client looks up the hash in its store, and the server sends it the missing blobs
(docs/reference/wire.md).
"""

from typing import TypeVar

from samara.shared.errors import BlobError, ConfigError
from samara.shared.settings.setting import Setting, Settings, describe
from samara.shared.storage.blob_store import BlobStore, parse_reference, resolve_blob, to_reference

S = TypeVar("S", bound=Settings)


def blob_settings(config: Settings) -> dict[str, str]:
    """Return the settings whose value names a file, by dotted key.

    Settings with an empty value or a keyword, which name no file, are left out.
    """
    described = describe(type(config))
    return {
        key: value
        for key, value in file_settings(config).items()
        if _names_a_file(described[key], value)
    }


def file_settings(config: Settings) -> dict[str, str]:
    """Return the values of all settings declared with `blob`, by dotted key."""
    described = describe(type(config))
    flat = config.flat()
    return {key: str(flat[key]) for key, setting in described.items() if setting.blob}


def _names_a_file(setting: Setting, value: str) -> bool:
    return bool(value) and value not in setting.words


def published_blobs(config: Settings) -> dict[str, bytes]:
    """Return the hashes of blobs in received settings, by dotted key.

    Raises:
        ConfigError: if a value is a path instead of a hash.
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
    """Store the files that settings name, and return the settings with hashes instead of paths.

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
    """Return settings with the paths of the stored files instead of hashes.

    Raises:
        ConfigError: if a value is neither a file nor a hash.
        MissingBlobError: if the store lacks a blob.
    """
    changes = {
        key: str(resolve_blob(value, store, key)) for key, value in blob_settings(config).items()
    }
    return config.with_values(changes) if changes else config
