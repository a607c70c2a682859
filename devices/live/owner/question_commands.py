"""The commands `samara client ask` and `serve`: the device's models for its owner."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from samara.devices.live.owner.commands import Home, Name, Run


def ask(
    text: Annotated[
        str, typer.Argument(help="A text, or - to read one per line from standard input.")
    ],
    name: Name = "",
    home: Home = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show base, global and personal model.")
    ] = False,
    generate: Annotated[
        bool, typer.Option("--generate", help="Continue the text instead of classifying it.")
    ] = False,
    run: Run = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per text.")
    ] = False,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum tokens of a generated text.")
    ] = 128,
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="Sampling temperature; 0 means the likeliest token.")
    ] = 0.0,
    top_p: Annotated[
        float,
        typer.Option(min=0.01, max=1, help="Share of the probability mass to draw tokens from."),
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed of the draws.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer.")] = None,
) -> None:
    """Ask this device's personal model, even during training; load it if no client is running.

    Example: samara client ask "what a lovely morning" --name kitchen-orin --compare
    """
    import json

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from samara.client.questions.question_limits import MODELS, PERSONAL
    from samara.devices.live.client_folder import client_folder
    from samara.devices.live.local_trainer import find_or_start_trainer
    from samara.devices.live.owner.ask import Choice, Reply
    from samara.devices.live.owner.ask import ask as ask_models

    table = Table("text", *MODELS)
    notes = dict[str, None]()

    def show(reply: Reply) -> None:
        given = [one.get("note", "") for one in reply.by_model.values()]
        notes.update(dict.fromkeys(filter(None, given)))
        if as_json:
            print(json.dumps({"text": reply.text, "models": reply.by_model}), flush=True)
        elif compare:
            lines = reply.lines()
            table.add_row(*map(Text, (reply.text, *(lines[model] for model in MODELS))))
        else:
            print(reply.lines()[PERSONAL], flush=True)

    lines = (line.rstrip("\r\n") for line in sys.stdin)
    texts = (line for line in lines if line.strip()) if text == "-" else [text]
    with find_or_start_trainer(client_folder(name, home)) as socket:
        about = ask_models(
            socket,
            texts,
            show,
            compare=compare,
            run=run,
            generate=generate,
            choice=Choice(max_tokens, temperature, top_p, seed, tuple(stop or ())),
        )
    if table.row_count:
        Console().print(table)
    for note in (about, *notes):
        print(note, file=sys.stderr)


def serve(
    name: Name = "",
    home: Home = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; addresses other than loopback need --token.")
    ] = ("127.0.0.1"),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 means any free port.")
    ] = 8420,
    socket: Annotated[
        Path | None, typer.Option(help="Unix socket instead of host and port.")
    ] = None,
    token: Annotated[
        Path | None,
        typer.Option(help="File with a token that requests must carry; created if missing."),
    ] = None,
    run: Run = "",
) -> None:
    """Serve this device's models over HTTP until Ctrl-C: /classify, /feedback, OpenAI-style chat.

    Example: samara client serve --name kitchen-orin
    """
    from contextlib import suppress

    from samara.client.training.own_examples import OwnExample, OwnExamples, row_of_text
    from samara.devices.live.client_folder import check_not_moved, client_folder
    from samara.devices.live.local_trainer import keep_trainer
    from samara.devices.live.owner import http_server
    from samara.devices.live.owner.http_requests import FeedbackBody
    from samara.devices.live.settings import ClientSettings
    from samara.shared.network.http.listening import open_tcp, read_token
    from samara.shared.tasks.catalog import load_task

    folder = client_folder(name, home)
    if socket is None:
        http_server.check_address(host, token is not None)
    secret = read_token(token.expanduser()) if token else ""
    task = load_task(ClientSettings.read(folder).config.task)

    def learn(correction: FeedbackBody) -> OwnExample:
        check_not_moved(folder)
        row = row_of_text(task, correction.text, correction.label)
        (example,) = OwnExamples(folder).learn([row], task)
        return example

    with suppress(KeyboardInterrupt), keep_trainer(folder) as trainer:
        if socket:
            listener = http_server.open_unix(socket)
            where = f"Unix socket {socket}"
        else:
            listener = open_tcp(host, port)
            where = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        print(f"serving on {where}", flush=True)
        try:
            http_server.serve(trainer, learn, listener, secret, run)
        finally:
            if socket:
                socket.unlink(missing_ok=True)
