"""A run of texts is the same by every objective wherever it is computed: live, streamed, quantized.

Flower's engine is compared in tests/e2e/test_flower.py.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from federations import Live, Settings, config_of
from residents import CLIENTS

from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.protocol.trainer_service import serve_trainer
from samara.devices.live.settings import ClientSettings, resolve_device_settings
from samara.server.app import serve
from samara.shared.config import RunConfig
from samara.shared.result import RunResult
from samara.simulations.comparison.columns import client_columns
from samara.simulations.simulate import simulate

ANSWERS = (
    'kind = "generation"\nname = "answers"\ntext = "{prompt} {answer}"\n'
    'label = "response"\ntokens = 3\nmetric = "token-f1"\n'
)
SERVERS = {"model.path": "embedded", "data.path": "messages"}
"""What a server names in place of the model and the texts of its clients."""
FEW = {"rounds": 2, "steps": 1, "queries": 2, "batch": 4, "personal.rounds": 1}


def rows_of(client: int, plain: bool) -> list[dict[str, str]]:
    """Return texts, or prompts and responses, of very different lengths, which share rows."""
    words = ("good", "bad", "warm", "awful")
    rows = [
        {
            "prompt": f"the {('film', 'day', 'meal', 'walk')[i % 4]} was",
            "response": " ".join(
                [words[client], words[i // 3 % 4], "very", words[i % 4]][: 1 + i % 4]
            ),
        }
        for i in range(24)
    ]
    return [{"text": " ".join(row.values())} for row in rows] if plain else rows


def settings_of_clients(
    settings: Settings, place: Path, plain: bool, quantization: str
) -> list[ClientSettings]:
    """Return the settings of two devices; the second streams the blocks of its model."""
    task = place / "answers.toml"
    task.write_text(ANSWERS)
    own = []
    for number, client in enumerate(CLIENTS):
        folder = place / str(client)
        folder.mkdir()
        data = place / f"{number}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows_of(number, plain)))
        chosen = resolve_device_settings(
            settings["model.path"],
            str(data),
            "texts" if plain else str(task),
            "cpu",
            [
                "threads=1",
                f"model.quantization={quantization}",
                f"model.stream={'host' if number else 'off'}",
            ],
        )
        own.append(
            ClientSettings(
                name="a",
                folder=folder,
                superlink="127.0.0.1:1",
                client_index=client,
                device_settings=chosen,
                insecure=True,
            )
        )
    return own


def serve_live(config: RunConfig, clients: Sequence[ClientSettings]) -> Path:
    """Train with residents behind sockets; returns the run's folder."""
    with ExitStack() as opened:
        for own in clients:
            resident = ResidentTrainer.load(own.config, own.client_index, own.folder)
            opened.enter_context(serve_trainer(lambda one=resident: one, own.socket))  # type: ignore[misc]
        return serve(config, Live([own.socket for own in clients], config))


@pytest.mark.parametrize(
    ("objective", "plain", "quantization"),
    [
        ("cross-entropy", False, "int8"),
        ("summed-cross-entropy", True, "nf4"),
        ("metric", False, "int8"),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                ("cross-entropy", True, "nf4"),
                ("summed-cross-entropy", True, "none"),
                ("summed-cross-entropy", False, "int8"),
                ("metric", False, "none"),
            )
        ),
    ],
)
def test_live_and_streamed_clients_compute_what_resident_ones_in_process_do(
    objective: str,
    plain: bool,
    quantization: str,
    settings: Settings,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    place = tmp_path_factory.mktemp("t")  # short: sockets lie in it
    clients = settings_of_clients(settings, place, plain, quantization)
    asked = FEW | {"objective": objective, "task": "texts" if plain else "responses"}
    config = config_of(settings | SERVERS | asked, cohort__available=2, evaluate__every=0)
    folder = serve_live(config, clients)
    live = RunResult.read(folder)
    assert not any(event.refused for event in live.rounds)
    for own in clients:
        resident = own.device_settings | {"model.stream": "off"}
        own.model_copy(update={"device_settings": resident}).write()
    homes = [own.folder for own in clients]
    again = config_of(config.flat(), out=str(place / "again"))
    in_process = RunResult.read(simulate(again, cohorts_from=folder, homes=homes))
    assert in_process.final_digest == live.final_digest
    for name, figures in client_columns(in_process).items():
        theirs = client_columns(live)[name]
        assert [one.loss for one in figures.values()] == [one.loss for one in theirs.values()]
