"""The commands `samara client` for the owner of a device: what is theirs, and may leave it."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str, typer.Option(help="Name of this client.")]
Home = Annotated[Path | None, typer.Option(help="Folder of the client; default ~/.samara/NAME.")]


class Form(StrEnum):
    """Form of an exported model."""

    PEFT = "peft"
    MERGED = "merged"


def export(
    out: Annotated[Path, typer.Option("--out", help="New folder for the model.")],
    name: Name = "",
    home: Home = None,
    run: Annotated[
        str, typer.Option(help="Beginning of the run's id; default the latest run.")
    ] = "",
    form: Annotated[
        Form, typer.Option(help="peft: an adapter. merged: a whole model for from_pretrained.")
    ] = Form.PEFT,
) -> None:
    """Write this client's personal model for other software, also while the client runs.

    Example: samara client export --name kitchen-orin --out my-model --form merged
    """
    from rich.console import Console

    from client.personal.model_folder import write_new_folder
    from client.protocol.client_model import ClientModel
    from devices.live.settings import ClientSettings, client_folder

    folder = client_folder(name, home)
    settings = ClientSettings.read(folder)
    model = ClientModel.read(folder, settings.config, settings.client_index, run)
    trained = model.trained
    write = trained.write_merged if form is Form.MERGED else trained.write_peft
    left_out = write_new_folder(out.expanduser().absolute(), write)
    console = Console()
    console.print(model.about, markup=False, highlight=False, soft_wrap=True)
    for tensor, numbers in left_out.items():
        console.print(f"In the model card alone: {tensor} {numbers}", markup=False)
    console.print(f"It is in {out}; README.md says how to load it", markup=False, soft_wrap=True)
