"""Parsing of server addresses given to commands."""

import re
from ipaddress import ip_address

from samara.shared.errors import ConfigError

_ORIGIN = re.compile(r"(https://[a-z0-9.-]+|http://(localhost|127\.0\.0\.1))(:\d{1,5})?/?")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/]+):(\d{1,5})")


def parse_address(address: str, option: str = "--superlink") -> tuple[str, int]:
    """Return the host and port of a server's address.

    Args:
        address: host:port, with brackets around an IPv6 host.
        option: name of the command's option, for the message.

    Raises:
        ConfigError: if the address is not host:port.
    """
    match = _ADDRESS.fullmatch(address)
    if not match or not 0 < int(match[2]) < 2**16:
        raise ConfigError(
            f"{option} {address}: this is not host:port; write for example example.org:8000, with "
            "a port up to 65535"
        )
    return match[1].strip("[]"), int(match[2])


def check_host(name: str, option: str) -> None:
    """Check that a server name is a host name, or an IPv4 or IPv6 address.

    Raises:
        ConfigError: if the name is neither.
    """
    try:
        ip_address(name)
    except ValueError:
        if not _HOST.fullmatch(name):
            raise ConfigError(
                f"{option} {name}: this is not a host name; write the name without scheme, port "
                "and spaces, e.g. server.example, and non-ASCII letters in xn-- form"
            ) from None


def parse_origin(text: str, option: str) -> str:
    """Check a web page's origin, such as ``https://phones.example``, and drop a trailing slash.

    Args:
        text: user input.
        option: name of the command's option, for the message.

    Raises:
        ConfigError: if browsers would not create keys for this origin.
    """
    if not _ORIGIN.fullmatch(text):
        raise ConfigError(
            f"{option} {text}: this is not an origin; write for example https://phones.example, or "
            "http only for localhost"
        )
    return text.rstrip("/")
