"""A client's second key belongs to the same client; the first key is then worthless."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from typer.testing import CliRunner

from benchmarks.faults.toy_client import app
from samara.devices.live.keys import create_key, read_client_index
from samara.devices.phone.commands import app as phone_commands
from samara.server.commands import app as commands
from samara.server.live.keys import KEYS_FOLDER, ClientKey, ClientKeys
from samara.server.transport import roster as module
from samara.server.transport.roster import Roster
from samara.shared.errors import DeviceError, SamaraError
from samara.shared.network.certificates import CERTIFICATES_FOLDER, make_certificates
from samara.shared.protocol.client_index import MAX_CLIENT, client_index_of_key
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.signing import SigningKey, public_pem
from samara.shared.protocol.wire import RECORD
from samara.simulations.engines.in_process import InProcessGrid


def test_a_client_with_a_new_key_keeps_its_index(tmp_path: Path) -> None:
    keys = ClientKeys(tmp_path / "keys")
    other = SigningKey(keys.create("garage")).public
    file = keys.create("kitchen")
    first, client = SigningKey(file).public, read_client_index(file)
    for _ in range(2):
        before = keys.modification_stamp()
        assert keys.rotate("kitchen") == file
        assert keys.modification_stamp() != before
        public = SigningKey(file).public
        assert public != first
        assert client_index_of_key(public) != client
        assert read_client_index(file) == client  # what the client says of itself
        server = ClientKeys(tmp_path / "keys")  # of the process that serves the run
        for each in (keys, server):
            each.check(public, client)
            with pytest.raises(SamaraError, match="is not registered here"):
                each.check(first, client)
            for claim in (client_index_of_key(public), client_index_of_key(other)):
                with pytest.raises(SamaraError, match=f"belongs to client {client}, not"):
                    each.check(public, claim)
            with pytest.raises(SamaraError, match=f"not to client {client}"):
                each.check(other, client)
    assert [key.client for key in keys.read_all()] == [client_index_of_key(other), client]
    assert file.stat().st_mode & 0o077 == 0


def test_a_client_that_makes_its_keys_itself_keeps_its_index(tmp_path: Path) -> None:
    keys, files = ClientKeys(tmp_path / "keys"), [tmp_path / f"{n}.key" for n in range(3)]
    create_key(files[0])
    client = read_client_index(files[0])
    public = [tmp_path / f"{n}.pem" for n in range(3)]
    public[0].write_bytes(SigningKey(files[0]).public)
    keys.add("pocket", public[0])
    for earlier, number in ((0, 1), (1, 2)):
        create_key(files[number], client)
        assert read_client_index(files[number]) == client
        assert files[number].stat().st_mode & 0o077 == 0
        public[number].write_bytes(SigningKey(files[number]).public)
        assert keys.rotate_to("pocket", public[number]).client == client
        server = ClientKeys(tmp_path / "keys")
        server.check(SigningKey(files[number]).public, client)
        with pytest.raises(SamaraError, match="is not registered here"):
            server.check(SigningKey(files[earlier]).public, client)
    for again in (0, 2):
        for register in (keys.rotate_to, keys.add):
            name = "another" if register == keys.add else "pocket"
            with pytest.raises(SamaraError, match="pocket already has this key"):
                register(name, public[again])
    with pytest.raises(SamaraError, match=r"0\.pem: cannot be read"):
        keys.rotate_to("pocket", tmp_path / "none" / "0.pem")
    keys.revoke("pocket")
    with pytest.raises(SamaraError, match="the key was revoked on 20"):
        keys.rotate_to("pocket", public[1])


def test_the_command_of_a_phone_makes_a_key_for_its_index(tmp_path: Path) -> None:
    runner, file = CliRunner(), tmp_path / "phone.key"
    made = runner.invoke(phone_commands, ["key", str(file), "--client", "77"])
    assert made.stdout.encode() == SigningKey(file).public
    assert read_client_index(file) == 77
    (tmp_path / "new.pem").write_text(made.stdout)
    keys = ClientKeys(tmp_path / "run" / KEYS_FOLDER)
    keys.create("pocket")
    client = keys.read_all()[0].client
    command = [
        "keys",
        "rotate",
        "pocket",
        str(tmp_path / "new.pem"),
        "--run",
        str(tmp_path / "run"),
    ]
    assert (
        f"pocket remains client {client} with the key in" in runner.invoke(commands, command).stdout
    )
    again = runner.invoke(phone_commands, ["key", str(file), "--client", "77"])
    assert again.stdout == made.stdout
    with pytest.raises(DeviceError, match="is not the key of client 78; name a new file"):
        create_key(file, 78)
    with pytest.raises(DeviceError, match="this is not a client index; the largest index is"):
        create_key(tmp_path / "more.key", MAX_CLIENT + 1)


class _GridOfOneClient(InProcessGrid):
    """A grid whose hellos all come from one client, whichever node sends them."""

    client = 0

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for reply in super().pull_messages(message_ids):
            record = reply.content.config_records[RECORD]
            frame = record["frame"]
            assert isinstance(frame, bytes)
            record["frame"] = replace(Hello.decode(frame), client=self.client).encode()
            yield reply


def test_the_server_takes_the_new_key_for_the_client_and_leaves_the_old_one_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ClientKeys(tmp_path)
    file = keys.create("kitchen")
    grid, roster = _GridOfOneClient(app, 2, {}), Roster(ClientKeys(tmp_path))
    grid.client = read_client_index(file)
    first, second = grid.get_node_ids()
    nodes = {first: SigningKey(file).public}
    monkeypatch.setattr(module, "_connected_nodes", lambda grid: dict(nodes))
    roster.request_hellos(grid, 1.0)
    assert {node: entry.client for node, entry in roster.entries.items()} == {first: grid.client}
    keys.rotate("kitchen")
    nodes[second] = SigningKey(file).public  # while whoever has the first key is still connected
    roster.request_hellos(grid, 1.0)
    assert {node: entry.client for node, entry in roster.entries.items()} == {second: grid.client}
    assert "is not registered here" in roster.refusal_reasons[0]


def test_the_commands_name_the_files(tmp_path: Path) -> None:
    run, runner = tmp_path / "run", CliRunner()
    tls = make_certificates(run / CERTIFICATES_FOLDER, [])
    ClientKeys(run / KEYS_FOLDER).create("kitchen")
    before = os.umask(0o077)
    try:
        rotated = runner.invoke(commands, ["keys", "rotate", "kitchen", "--run", str(run)])
        certificate = tls.certificate.read_bytes()
        renewed = runner.invoke(commands, ["keys", "rotate", "--run", str(run)])
    finally:
        os.umask(before)
    assert f"{run / KEYS_FOLDER / 'kitchen.key'}: copy this file to kitchen" in rotated.stdout
    assert f"{tls.certificate}: valid until 20" in renewed.stdout
    assert tls.certificate.read_bytes() != certificate


def test_a_public_key_is_registered_by_create_and_none_of_a_gateway(tmp_path: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    public = tmp_path / "phone.pem"
    public.write_bytes(public_pem(private))
    create = ["keys", "create", "phone", str(public), "--run", str(tmp_path)]
    refused = CliRunner().invoke(commands, [*create, "--gateway"])
    assert "a gateway's key is created by this command" in str(refused.exception)
    assert not (tmp_path / KEYS_FOLDER).exists()
    assert "phone may join as client" in CliRunner().invoke(commands, create).stdout
    (key,) = ClientKeys(tmp_path / KEYS_FOLDER).read_all()
    assert key.public_key.encode() == public.read_bytes()
    assert not (tmp_path / KEYS_FOLDER / "phone.key").exists()


def test_flowers_supernode_reads_a_key_file_with_an_index(tmp_path: Path) -> None:
    keys = ClientKeys(tmp_path)
    keys.create("kitchen")
    content = keys.rotate("kitchen").read_bytes()
    assert content.endswith(
        b"-----END OPENSSH PRIVATE KEY-----\nSamara-Client-Index: %d\n" % keys.read_all()[0].client
    )
    assert isinstance(load_ssh_private_key(content, None), ec.EllipticCurvePrivateKey)


def test_a_gateway_with_a_new_key_is_a_gateway(tmp_path: Path) -> None:
    keys = ClientKeys(tmp_path)
    first = SigningKey(keys.create("hub", gateway=True)).public
    second = SigningKey(keys.rotate("hub")).public
    assert (keys.is_gateway(first), keys.is_gateway(second)) == (False, True)


def test_only_a_valid_key_is_rotated(tmp_path: Path) -> None:
    keys = ClientKeys(tmp_path)
    with pytest.raises(SamaraError, match="has no key kitchen"):
        keys.rotate("kitchen")
    keys.create("kitchen")
    keys.revoke("kitchen")
    before = keys.read_all()
    with pytest.raises(SamaraError, match="the key was revoked on 20"):
        keys.rotate("kitchen")
    assert keys.read_all() == before


def test_the_index_of_a_rotated_clients_first_key_stays_taken(tmp_path: Path) -> None:
    keys, file = ClientKeys(tmp_path / "keys"), tmp_path / "first.pem"
    file.write_bytes(SigningKey(keys.create("kitchen")).public)
    keys.rotate("kitchen")
    with pytest.raises(
        SamaraError, match="kitchen already has this key, or a key with the same client index"
    ):
        keys.add("another", file)


@pytest.mark.parametrize("index", [-1, MAX_CLIENT + 1, True, "7", 1.5])
def test_a_key_file_with_an_index_that_no_client_has_is_damaged(
    index: object, tmp_path: Path
) -> None:
    keys = ClientKeys(tmp_path)
    keys.create("kitchen")
    file = tmp_path / "kitchen.json"
    fields = json.loads(file.read_text())
    assert "index" not in fields
    file.write_text(json.dumps(fields | {"index": index}))
    assert keys.read_all() == list[ClientKey]()
    assert "kitchen.json: damaged: index is" in keys.find_damage()[0]
