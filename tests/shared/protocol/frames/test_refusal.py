"""Frames with which a client refuses: a code and numbers, but no text."""

import errno
import struct

import pytest

from samara.shared.errors import (
    CatchUpError,
    DiskError,
    RefusalCode,
    SamaraError,
    TrainerError,
    find_disk_error,
)
from samara.shared.protocol.frames.refusal import Refusal, describe_servers_refusal

PREFIX_BYTES = 8


def errors_of(kind: type[SamaraError] = SamaraError) -> list[type[SamaraError]]:
    return [kind, *(below for error in kind.__subclasses__() for below in errors_of(error))]


@pytest.mark.parametrize("kind", [e for e in errors_of() if e.__module__ == "samara.shared.errors"])
def test_every_error_names_the_code_of_its_refusal(kind: type[SamaraError]) -> None:
    assert isinstance(vars(kind)["refusal_code"], RefusalCode)


@pytest.mark.parametrize("kind", errors_of())
def test_no_refusal_holds_any_text(kind: type[SamaraError]) -> None:
    text = "/home/mary/mail.jsonl:2: row 'my secret' has no label"
    refusal = Refusal.of_error(bytes(8), 3, 7, kind(text, (5, 2**32 - 1)))
    assert not any(isinstance(value, str) for value in vars(refusal).values())
    numbers = struct.pack("<IIHII", 3, 7, kind.refusal_code, 5, 2**32 - 1)
    assert refusal.encode()[PREFIX_BYTES:] == bytes(8) + numbers
    assert "mary" not in refusal.description
    assert "secret" not in refusal.description


@pytest.mark.parametrize("code", RefusalCode)
def test_every_code_of_a_refusal_has_a_sentence(code: RefusalCode) -> None:
    known, unknown = (Refusal(bytes(8), 3, 7, c).description for c in (code, 999))
    assert f"(code {code:d}); the reason is in the client's own log" in known
    assert code == 0 or known.split(" (")[0] != unknown.split(" (")[0]


@pytest.mark.parametrize("code", [*RefusalCode, 999])
def test_a_refused_client_is_told_why_in_words(code: int) -> None:
    sentence = describe_servers_refusal(code)
    assert sentence.startswith("the server refuses this client: ")
    assert sentence.endswith(f" (code {code:d})")
    told = {describe_servers_refusal(c).split(" (code")[0] for c in (9, 4, 1, 20, 21, 999)}
    assert len(told) == 6


def test_the_numbers_of_a_refusal_are_in_its_sentence() -> None:
    error = CatchUpError("stands elsewhere", (7, 5))
    description = Refusal.of_error(bytes(8), 3, 5, error).description
    assert description.startswith("it cannot catch up to the end of round 7: it reached round 5 (")


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "its disk is full: no space left on device"),
        (errno.EDQUOT, "its disk quota is exceeded"),
        (errno.EFBIG, "one of its files exceeds the size limit of its system"),
        (errno.EROFS, "its disk can only be read"),
        (errno.EIO, "its disk fails: input/output error"),
    ],
)
def test_a_problem_of_the_disk_has_its_name(number: int, sentence: str) -> None:
    def fail() -> None:
        try:
            raise OSError(number, "secret words")
        except OSError as error:
            raise TrainerError("scalars.json: cannot be written") from error

    with pytest.raises(TrainerError) as raised:
        fail()
    found = find_disk_error(raised.value)
    assert isinstance(found, DiskError)
    assert Refusal.of_error(bytes(8), 3, 5, found).description.startswith(sentence)
    assert find_disk_error(OSError(errno.EACCES, "")) is None
    assert find_disk_error(TrainerError("")) is None


def test_a_code_that_only_a_newer_version_knows_stays_a_number() -> None:
    refusal = Refusal.decode(Refusal(bytes(8), 3, 7, 999, (1, 2)).encode())
    assert (refusal.code, refusal.numbers) == (999, (1, 2))
    assert "(code 999)" in refusal.description
