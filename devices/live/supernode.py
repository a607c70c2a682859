"""The process of Flower's SuperNode, which ends when its parent process ends.

If the server turns it away, it ends at once with a status that says why. Flower would log lines of
its own that do not, or interrupt itself as if a person had.
"""

import logging
import os
import sys

import httpx
import uvicorn

from devices.live.processes import exit_with_parent, status_of_rejection
from shared.rejection import HEADER, rejection_in


def end_when_rejected() -> None:
    """Have this process end as soon as an answer says that the server turns it away."""
    handle = httpx.HTTPTransport.handle_request

    def watched(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        response = handle(transport, request)
        if (code := rejection_in(response.headers.get(HEADER))) is not None:
            os._exit(status_of_rejection(code))
        return response

    httpx.HTTPTransport.handle_request = watched  # type: ignore[assignment, method-assign]


def silence_foreign_lines() -> None:
    """Leave out the lines in which libraries tell that they start and what they try out."""
    for settings in uvicorn.config.LOGGING_CONFIG["loggers"].values():
        settings["level"] = "WARNING"
    flower = logging.getLogger("flwr")
    flower.addFilter(lambda record: "EXPERIMENTAL" not in record.getMessage())


def main() -> None:
    """Run ``flower-supernode`` with the arguments after the parent's process id."""
    parent, *arguments = sys.argv[1:]
    exit_with_parent(int(parent))
    end_when_rejected()
    silence_foreign_lines()
    from shared.flower_compat import flower_supernode

    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


if __name__ == "__main__":
    main()
