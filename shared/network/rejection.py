"""Rejections: a server's reason for turning a request away, as a code in an HTTP header.

A rejection differs from a refusal (`samara.shared.protocol.frames.refusal`), with which a client
answers a message. As with refusals, only a code crosses the network. The rejected client turns it
into a sentence.
"""

from enum import IntEnum

HEADER = "samara-rejection"
"""Header of an HTTP answer whose value is a `RejectionCode`."""


class RejectionCode(IntEnum):
    """The reason for rejecting a request. A number always keeps its meaning."""

    UNREGISTERED = 1
    REVOKED = 2
    CLOCK = 3
    SIGNATURE = 4
    CONNECTED = 5
    FINISHED = 6


_SENTENCES = {
    RejectionCode.UNREGISTERED: "this client's key is not registered on the server; ask the "
    "operator for a key of this run, or to register this key (samara server status --keys lists "
    "the keys)",
    RejectionCode.REVOKED: "this client's key was revoked; ask the operator for an invitation "
    "(samara server invite), or for a new key (samara server keys create) for --key",
    RejectionCode.CLOCK: "this machine's clock is wrong; synchronize it with a time server",
    RejectionCode.SIGNATURE: "a request was not signed with this client's key; update Samara",
    RejectionCode.CONNECTED: "this client's key is already connected from another machine, or was "
    "connected from this machine within the last minute, or the server is just starting",
    RejectionCode.FINISHED: "the run has finished",
}


def describe_rejection(code: RejectionCode) -> str:
    """Return the reason for a rejection as a sentence for the log of the rejected client."""
    return f"the server turns this client away: {_SENTENCES[code]}"


def rejection_in(header: str | None) -> RejectionCode | None:
    """Return the code in a header, or None if the code is missing or unknown to this version."""
    try:
        return RejectionCode(int(header or ""))
    except ValueError:
        return None
