"""The phone page's keys and signatures, and the messages of its stream."""

from cryptography.hazmat.primitives.asymmetric import ec
from typescript import RunCore

from samara.shared.errors import FrameError
from samara.shared.proto.trainer_pb2 import (
    Challenge,
    FromPhone,
    Proof,
    Task,
    TaskKind,
    TaskResult,
    ToPhone,
)
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.signing import answer_bytes, is_signed_by, proof_bytes, public_pem, sign


def test_signatures_of_every_curve_are_checked(run_page: RunCore) -> None:
    asked = []
    for curve in (ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1(), ec.SECP256K1()):
        key = ec.generate_private_key(curve)
        pem, data = public_pem(key), b"frame"
        signatures = [sign(key, data), sign(key, b"other"), b"", sign(key, data)[:-1]]
        hexadecimal = [signature.hex() for signature in signatures]
        asked.append(["signatures", pem.decode(), hexadecimal, data.hex()])
    asked.append(["signatures", "  " + asked[0][1].replace("\n", "\n\n"), [], ""])
    asked.append(["signatures", "-----BEGIN PUBLIC KEY-----\nAAAA\n", [""], ""])
    *known, unknown, spaced, none = run_page(asked)
    assert [found["are"] for found in known] == [[True, False, False, False]] * 3
    assert spaced["spki"] == known[0]["spki"]
    assert unknown["spki"] == none["spki"] == ""


def test_signatures_of_a_browsers_key_are_those_of_every_phone(run_page: RunCore) -> None:
    nonce, instruction, frame = bytes(range(32)), b"instruction", b"frame"
    given = ["key", nonce.hex(), instruction.hex(), frame.hex()]
    numbers = [(1, 2**255), (2**256 - 1, 2**127), (0x80, 0)]
    raw = [["der", b"".join(n.to_bytes(32, "big") for n in pair).hex()] for pair in numbers]
    *keys, first, second, third = run_page([given] * 20 + raw)
    for key in keys:
        pem = bytes.fromhex(key["pem"])
        assert key["client"] == client_index_of_key(pem)
        assert is_signed_by(pem, bytes.fromhex(key["proof"]), proof_bytes(nonce))
        assert is_signed_by(pem, bytes.fromhex(key["answer"]), answer_bytes(instruction, frame))
        assert not key["extractable"]
    assert first == f"3026020101022100{2**255:064x}"
    assert second == f"3036022100{2**256 - 1:064x}0211" + f"00{2**127:032x}"
    assert third == "3007020200800201" + "00"


def test_messages_of_the_stream_are_protobufs(run_page: RunCore) -> None:
    task = Task(
        number=2**31,
        kind=TaskKind.EVALUATE,
        instruction=b"i" * 300,
        tail=b"t",
        seconds=5.0,
        settings=b"{}",
        personal=True,
    )
    messages = [
        ToPhone(challenge=Challenge(version=1, nonce=bytes(32), takes_boards=True)),
        ToPhone(task=task),
    ]
    bad = [b"", b"\x12\x05\x08", b"\x13", messages[1].SerializeToString()[:-1]]
    encoded = [message.SerializeToString() for message in messages] + bad
    asked = [["toPhone", message.hex()] for message in encoded]
    asked += [["proof", b"pem".hex(), b"der".hex()], ["result", 300, b"f".hex(), b"s".hex()]]
    challenge, read, *refused, proof, result = run_page(asked)
    assert challenge == {"challenge": {"version": 1, "nonce": bytes(32).hex()}}
    expected = {"number": 2**31, "kind": TaskKind.EVALUATE, "personal": True, "snapshot": ""}
    expected |= {"instruction": (b"i" * 300).hex(), "tail": b"t".hex(), "shares": ""}
    assert read == {"task": expected | {"settings": b"{}".hex()}}
    assert refused == [FrameError.__name__] * len(bad)
    for found, said in (
        (proof, FromPhone(proof=Proof(public_key=b"pem", signature=b"der"))),
        (result, FromPhone(result=TaskResult(number=300, frame=b"f", signature=b"s"))),
    ):
        assert FromPhone.FromString(bytes.fromhex(found)) == said
