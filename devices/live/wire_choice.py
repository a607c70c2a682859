"""The wire of a client, from the owner's options, earlier settings, or an invitation."""

from pathlib import Path
from typing import NamedTuple

from samara.devices.live.client_folder import SETTINGS_FILE
from samara.devices.live.join import read_joined_server
from samara.devices.live.keys import OWN_KEY_FILE
from samara.devices.live.settings import ClientSettings, Wire
from samara.shared.errors import ConfigError, DeviceError
from samara.shared.network.addresses import parse_address


class WireChoice(NamedTuple):
    """A wire and the facts needed to use it.

    Attributes:
        wire: ``flower`` or ``stream``; None means the earlier choice or, without one, ``flower``.
        superlink: address of the server, host:port; empty with the stream.
        gateways: addresses of gateways, host:port; empty without the stream.
        key: private key file of the client; None means the key in its folder.
        certificates: PEM file that verifies the server or the gateways; None means the system's.
    """

    wire: Wire | None = None
    superlink: str = ""
    gateways: tuple[str, ...] = ()
    key: Path | None = None
    certificates: Path | None = None


def choose_wire(folder: Path, given: WireChoice, may_lack_key: bool) -> WireChoice:
    """Complete the wire options of a command from earlier settings or from the joined run.

    Args:
        folder: folder of the client.
        given: options of the command.
        may_lack_key: whether the key is optional.

    Raises:
        ConfigError: if something is missing, or options contradict each other.
        DeviceError: if the file about the joined server is damaged.
    """
    before = _read_earlier(folder)
    joined = read_joined_server(folder)
    wire = given.wire or before.wire or ("stream" if joined and joined.gateway else "flower")
    key = given.key or (joined.key if joined else before.key)
    if wire == "stream":
        if given.superlink:
            raise ConfigError(
                "--superlink belongs to --wire flower; give --gateway HOST:PORT instead"
            )
        gateways = given.gateways or before.gateways
        certificates = given.certificates or (None if given.gateways else before.certificates)
        if not gateways and joined and joined.gateway:
            gateways = (joined.gateway,)
            certificates = certificates or joined.gateway_authority
        if not gateways:
            raise ConfigError(
                "--gateway HOST:PORT is missing; give the address of a `samara gateway up` of the "
                "run"
            )
        for gateway in gateways:
            parse_address(gateway, "--gateway")
        if not (key or may_lack_key or (folder / OWN_KEY_FILE).is_file()):
            raise ConfigError(_NO_KEY)
        return WireChoice("stream", "", gateways, key, certificates)
    if given.gateways:
        raise ConfigError("--gateway belongs to --wire stream; leave it out, or use --wire stream")
    superlink = given.superlink
    certificates = given.certificates
    key = given.key
    if not superlink:
        if joined is None:
            raise ConfigError(
                "--superlink HOST:PORT is missing; give it, or join the run first, with the line "
                "that `samara server invite` prints on the server"
            )
        superlink = joined.superlink
        key = key or joined.key
        certificates = certificates or joined.certificates
    parse_address(superlink)
    if key is None and not may_lack_key:
        raise ConfigError(_NO_KEY)
    return WireChoice("flower", superlink, (), key, certificates)


_NO_KEY = (
    "--key FILE is missing; create one with `samara server keys create` on the server, or "
    "join by the line that `samara server invite` prints there"
)


def _read_earlier(folder: Path) -> WireChoice:
    """Return the wire from the client's settings file; without a readable file, an empty choice."""
    if not (folder / SETTINGS_FILE).is_file():
        return WireChoice()
    try:
        settings = ClientSettings.read(folder)
    except DeviceError:  # the command overwrites a damaged or older file
        return WireChoice()
    if settings.wire != "stream":
        return WireChoice("flower")
    return WireChoice("stream", "", settings.gateways, settings.key, settings.certificates)
