"""Proxy bypass: connections between clients, gateways and servers use no proxy.

Some libraries obey environment variables such as ``https_proxy``, and other libraries do not. So
with a proxy, one request of a client might reach its server, and the next might not. All clients
behind a proxy also share one address, and a server limits requests by address. Downloads of models,
data sets and wheels do use a proxy.
"""

import os
from collections.abc import Mapping, MutableMapping
from typing import Final

DIRECT: Final[dict[str, str]] = {"no_proxy": "*", "NO_PROXY": "*"}
"""Environment variables that keep a process that connects only to a server from using a proxy."""
_THIS_MACHINE = "127.0.0.1,localhost"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")


def exempt_this_machine(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this process and its children reach this machine without a proxy."""
    if _named(environment):
        exempt = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
        if exempt != "*":
            exempt = ",".join(filter(None, [exempt, _THIS_MACHINE]))
        environment["no_proxy"] = environment["NO_PROXY"] = exempt


def remark_on_proxy(environment: Mapping[str, str] = os.environ) -> str:
    """Return a remark for a connection's error if a proxy is set, otherwise an empty text."""
    if not (name := _named(environment)):
        return ""
    return (
        f"; {name} is set, but Samara uses it only for downloads: clients, gateways and servers "
        "connect directly, or by a VPN"
    )


def _named(environment: Mapping[str, str]) -> str:
    """Return the name of the environment variable that sets a proxy, or an empty text."""
    names = (given for name in _PROXIES for given in (name, name.upper()))
    return next((name for name in names if environment.get(name)), "")
