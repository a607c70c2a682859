"""The commands of `samara client` for a device's owner: export, move and forget."""

import shlex
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str, typer.Option(help="Name of this client.")]
Home = Annotated[Path | None, typer.Option(help="Folder of the client; default ~/.samara/NAME.")]
Run = Annotated[str, typer.Option(help="First digits of the run id; default: the run in use.")]
PassphraseFile = Annotated[
    Path | None, typer.Option(help="File whose first line is the passphrase; default: ask.")
]


class Form(StrEnum):
    """The form of an exported model."""

    PEFT = "peft"
    MERGED = "merged"


def export(
    out: Annotated[Path, typer.Option("--out", help="New folder for the model.")],
    name: Name = "",
    home: Home = None,
    run: Run = "",
    form: Annotated[
        Form, typer.Option(help="peft: an adapter. merged: a complete model for from_pretrained.")
    ] = Form.PEFT,
    gguf: Annotated[
        Path | None,
        typer.Option(help="GGUF file of the base model: write a LoRA for llama.cpp and Ollama."),
    ] = None,
) -> None:
    """Export this client's personal model for other software, even while the client runs.

    Example: samara client export --name kitchen-orin --out my-model --form merged
    """
    from rich.console import Console

    from samara.client.personal.model_folder import write_new_folder
    from samara.client.questions.client_model import read_model_in_use
    from samara.devices.live.client_folder import client_folder
    from samara.devices.live.settings import ClientSettings
    from samara.shared.errors import ConfigError
    from samara.shared.model.gguf_adapter import gguf_use

    folder = client_folder(name, home)
    if gguf is not None and form is not Form.PEFT:
        raise ConfigError("--gguf and --form exclude each other; give one of them")
    settings = ClientSettings.read(folder)
    model = read_model_in_use(folder, settings.config, settings.client_index, run)
    trained = model.trained
    write = trained.write_merged if form is Form.MERGED else trained.write_peft
    if gguf is not None:
        write = partial(trained.write_gguf, model_file=gguf)
    left_out = write_new_folder(out.expanduser().absolute(), write)
    console = Console()
    console.print(model.about, markup=False, highlight=False, soft_wrap=True)
    for tensor, numbers in left_out.items():
        console.print(f"The exported format omits this tensor: {tensor} {numbers}", markup=False)
    how = "its README.md explains how to load it" if gguf is None else gguf_use(gguf, out)
    console.print(f"The model is in {out}; {how}", markup=False, soft_wrap=True)


def move(
    file: Annotated[Path, typer.Argument(help="Encrypted file with the complete client.")],
    name: Name = "",
    home: Home = None,
    here: Annotated[
        bool, typer.Option("--here", help="On the new device: create the client from the file.")
    ] = False,
    copy: Annotated[
        bool, typer.Option("--copy", help="Make a backup: this client stays usable here.")
    ] = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Move this client: write an encrypted file and disable the client here; --here reads the file.

    Example: samara client move kitchen.moved --name kitchen-orin
    """
    from samara.devices.live.client_folder import check_was_started, client_folder
    from samara.devices.live.owner.moving import move_client
    from samara.shared.errors import ConfigError

    folder = client_folder(name, home)
    if here:
        if copy:
            raise ConfigError("--copy: this option is for the old device; leave it out with --here")
        _make_client(file, folder, name, _read_passphrase(passphrase_file))
        return
    check_was_started(folder)  # before the question
    moved = move_client(folder, file, _read_passphrase(passphrase_file, confirm=True), copy)
    print(f"{file} contains {moved.files} files, {moved.bytes:,} bytes, encrypted")
    for path in moved.left_out:
        print(f"left out, because it is a link or hidden: {path}")
    print("The file does not contain the model or the data that --data names; copy them yourself")
    if not copy:
        print(f"This client will not start here again. Once it runs elsewhere, delete {folder}")


def _make_client(file: Path, folder: Path, name: str, passphrase: str) -> None:
    """Create the client stored in a file, and print the command that continues with it."""
    from samara.devices.live.owner.moving import import_client

    settings = import_client(file, folder, name, passphrase)
    print(f"Client {settings.client_index} is in {folder}. Continue with this command:")
    options: list[object] = ["--superlink", settings.superlink] if settings.superlink else []
    for gateway in settings.gateways:
        options += ["--gateway", gateway]
    options += ["--wire", "stream"] if settings.wire == "stream" else []
    options += ["--name", settings.name, "--home", folder]
    for option, path in (("--key", settings.key), ("--certs", settings.certificates)):
        options += [option, path] if path else []
    options += ["--insecure"] if settings.insecure else []
    print(shlex.join(["samara", "client", "up", *map(str, options)]))
    print("Add --model, --data, --task and the limits for this device.")


def forget(
    name: Name = "",
    home: Home = None,
    run: Annotated[
        str,
        typer.Option(
            help="The run whose id starts with these digits, except its record of answers."
        ),
    ] = "",
    private: Annotated[
        bool, typer.Option("--private", help="Private rounds of all runs, and learned examples.")
    ] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Everything except the key, the owner's limits and the log."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete data that this client keeps for its owner, and show the remaining data.

    Example: samara client forget --name kitchen-orin --private
    """
    from samara.devices.live.client_folder import client_folder
    from samara.devices.live.owner.forgetting import Forgotten, describe_rest, find_files
    from samara.devices.live.owner.forgetting import forget as delete
    from samara.shared.errors import ConfigError

    if bool(run) + private + everything != 1:
        raise ConfigError("give exactly one of --run RUN, --private and --all")
    what = Forgotten.RUN if run else Forgotten.PRIVATE if private else Forgotten.ALL
    folder = client_folder(name, home)
    files = find_files(folder, what, run)
    for file in files:
        print(f"{'delete' if yes else 'to be deleted'}: {file.path}, {file.bytes:,} bytes")
    if not files:
        print(f"{folder}: there is no such data to delete")
    elif not yes:
        typer.confirm(f"Delete these {len(files)} files permanently?", abort=True)
    delete(folder, files)
    print(f"{len(files)} files, {sum(file.bytes for file in files):,} bytes deleted. What remains:")
    for line in describe_rest(folder):
        print(line)


def _read_passphrase(file: Path | None, confirm: bool = False) -> str:
    """Return the first line of a file, or a passphrase typed by the owner.

    Raises:
        ConfigError: if the file cannot be read.
    """
    from samara.shared.errors import ConfigError

    if file is None:
        typed: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm)
        return typed
    try:
        return file.read_text(encoding="utf-8").split("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--passphrase-file {file}: this file cannot be read: {error}") from error
