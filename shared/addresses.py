"""Addresses of servers, as the commands take them."""

import re

from shared.errors import ConfigError

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/]+):(\d{1,5})")


def parse_address(address: str, option: str = "--superlink") -> tuple[str, int]:
    """Return the host and port of a server's address.

    Args:
        address: host:port, with a host of IPv6 in brackets.
        option: option that gives it, for the message.

    Raises:
        ConfigError: if the address is not host:port.
    """
    match = _ADDRESS.fullmatch(address)
    if not match or not 0 < int(match[2]) < 2**16:
        raise ConfigError(f"{option} {address}: write it as host:port, e.g. example.org:8000")
    return match[1].strip("[]"), int(match[2])
