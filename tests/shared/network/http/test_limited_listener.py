"""Connections are counted by network; the oldest one without a proof is closed to make room."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from samara.shared.network.http.limited_listener import LimitedConnection, LimitedListener

SECONDS = 20.0
Pair = tuple[socket.socket, LimitedConnection]


class Held:
    """A listener with its accepted connections, which are closed at the end."""

    def __init__(self, listener: LimitedListener, stack: ExitStack) -> None:
        self.listener, self._stack = listener, stack

    def connect(self, source: str = "127.0.0.1") -> Pair:
        address = self.listener.getsockname()
        mine = socket.create_connection(address, SECONDS, source_address=(source, 0))
        accepted, _ = self.listener.accept()
        return self._stack.enter_context(mine), self._stack.enter_context(accepted)


@contextmanager
def holding(**limits: int) -> Iterator[Held]:
    with ExitStack() as stack:
        listener = stack.enter_context(LimitedListener("127.0.0.1", 0, **limits))
        listener.listen()
        yield Held(listener, stack)


def is_open(pair: Pair) -> bool:
    """Return whether data from the server arrive; False after the server's close."""
    try:
        pair[1].sendall(b"!")
        return pair[0].recv(1) == b"!"
    except OSError:
        return False


def test_a_network_that_is_full_gives_up_its_oldest_connection() -> None:
    with holding(most=10, share=2) as held:
        other = held.connect("127.0.2.1")
        same = [held.connect(f"127.0.1.{n}") for n in range(1, 5)]
        assert [is_open(pair) for pair in same] == [False, False, True, True]
        assert is_open(other)


def test_a_listener_that_is_full_gives_up_its_oldest_connection() -> None:
    with holding(most=3, share=2) as held:
        pairs = [held.connect(f"127.0.{n}.1") for n in range(1, 6)]
        assert [is_open(pair) for pair in pairs] == [False, False, True, True, True]


def test_a_connection_with_a_proof_makes_no_room_and_takes_none() -> None:
    with holding(most=2, share=2) as held:
        proved, *others = [held.connect()]
        held.listener.keep(proved[0].getsockname())
        others = [held.connect() for _ in range(3)]
        assert is_open(proved)
        assert [is_open(pair) for pair in others] == [False, True, True]


def test_a_closed_connection_is_counted_no_more() -> None:
    with holding(most=2, share=2) as held:
        for _ in range(10):
            held.connect()[1].close()
        pairs = [held.connect(), held.connect()]
        assert all(is_open(pair) for pair in pairs)
        assert len(held.listener._open) == 2
        assert list(held.listener._networks) == ["127.0.0.0/24"]


def test_without_a_file_descriptor_the_oldest_connection_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with holding(most=9, share=9) as held:
        pairs = [held.connect(), held.connect()]

        def accept(_: Any) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", accept)
            with pytest.raises(ConnectionAbortedError, match="no file descriptor"):
                held.listener.accept()
            for pair in pairs:
                held.listener.keep(pair[0].getsockname())
            with pytest.raises(OSError, match="Too many open files"):
                held.listener.accept()
        assert [is_open(pair) for pair in pairs] == [False, True]
