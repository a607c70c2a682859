"""Proxies: connections between clients, gateways and servers go through none.

Libraries differ in whether they obey variables such as ``https_proxy``: a client would reach its
server by one request and not by the next. A proxy's clients also have one address, by which a
server limits requests. Downloads of models, data sets and wheels obey these variables.
"""

import os
from collections.abc import Mapping, MutableMapping
from typing import Final

DIRECT: Final[dict[str, str]] = {"no_proxy": "*", "NO_PROXY": "*"}
"""Variables of a process that connects to nothing but a server of ours."""
_THIS_MACHINE = "127.0.0.1,localhost"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")


def exempt_this_machine(environment: MutableMapping[str, str] = os.environ) -> None:
    """Have a process, and those that it starts, reach its own machine without a proxy."""
    if _named(environment):
        exempt = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
        if exempt != "*":
            exempt = ",".join(filter(None, [exempt, _THIS_MACHINE]))
        environment["no_proxy"] = environment["NO_PROXY"] = exempt


def remark_on_proxy(environment: Mapping[str, str] = os.environ) -> str:
    """Return a remark for where a server does not answer; empty if no proxy is set."""
    if not (name := _named(environment)):
        return ""
    return (
        f"; {name} is set and not used: it is for downloads, and a client, a gateway and a server "
        "connect directly, or by a VPN"
    )


def _named(environment: Mapping[str, str]) -> str:
    """Return the name of a variable that sets a proxy; empty if none does."""
    names = (given for name in _PROXIES for given in (name, name.upper()))
    return next((name for name in names if environment.get(name)), "")
