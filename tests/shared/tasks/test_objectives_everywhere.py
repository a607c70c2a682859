"""A run with any objective is the same wherever it is computed: live, streamed or quantized.

Flower's engine is compared in tests/e2e/test_flower.py.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from federations import Live, Settings, config_of
from residents import CLIENTS

from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.trainer.trainer_service import serve_trainer
from samara.devices.live.settings import ClientSettings, resolve_device_settings
from samara.server.app import serve
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.profiled_loss import PROFILED
from samara.simulations.comparison.columns import client_columns
from samara.simulations.simulate import simulate

ANSWERS = (
    'kind = "generation"\nname = "answers"\ntext = "{prompt} {answer}"\n'
    'label = "response"\ntokens = 3\nmetric = "token-f1"\n'
)
SERVERS = {"model.path": "embedded", "data.path": "messages"}
"""Model and data that a server names; its clients use their own."""
FEW = {"rounds": 2, "steps": 1, "queries": 2, "batch": 4, "personal.rounds": 1}


def rows_of(client: int, task: str) -> list[dict[str, Any]]:
    """Return texts, prompts with responses, or texts with labels, of very different lengths."""
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
    if task == "answers":
        return [dict(row) for row in rows]
    texts = [" ".join(row.values()) for row in rows]
    if task == "sst2":
        return [{"text": text, "label": i * (client + 1) % 3 % 2} for i, text in enumerate(texts)]
    return [{"text": text} for text in texts]


def settings_of_clients(
    settings: Settings, place: Path, kind: str, quantization: str
) -> list[ClientSettings]:
    """Return the settings of two devices; the second streams the blocks of its model."""
    task = place / "answers.toml"
    task.write_text(ANSWERS)
    own = []
    for number, client in enumerate(CLIENTS):
        folder = place / str(client)
        folder.mkdir()
        data = place / f"{number}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows_of(number, kind)))
        chosen = resolve_device_settings(
            settings["model.path"],
            str(data),
            str(task) if kind == "answers" else kind,
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
    """Train with resident trainers behind sockets; return the run's folder."""
    with ExitStack() as opened:
        for own in clients:
            resident = ResidentTrainer.load(own.config, own.client_index, own.folder)
            opened.enter_context(serve_trainer(lambda one=resident: one, own.socket))  # type: ignore[misc]
        return serve(config, Live([own.socket for own in clients], config))


@pytest.mark.parametrize(
    ("objective", "kind", "quantization"),
    [
        ("cross-entropy", "answers", "int8"),
        ("summed-cross-entropy", "texts", "nf4"),
        ("metric", "answers", "int8"),
        (PROFILED, "sst2", "int8"),
        (PROFILED, "sst2", "nf4"),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                ("cross-entropy", "texts", "nf4"),
                ("summed-cross-entropy", "texts", "none"),
                ("summed-cross-entropy", "answers", "int8"),
                ("metric", "answers", "none"),
                (PROFILED, "sst2", "none"),
            )
        ),
    ],
)
def test_live_and_streamed_clients_compute_what_resident_ones_in_process_do(
    objective: str,
    kind: str,
    quantization: str,
    settings: Settings,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if quantization == "nf4":
        pytest.importorskip("bitsandbytes", reason="needs the extra samara-fl[quantized]")
    place = tmp_path_factory.mktemp("t")  # short: sockets lie in it
    clients = settings_of_clients(settings, place, kind, quantization)
    asked = FEW | {"objective": objective, "task": "responses" if kind == "answers" else kind}
    asked["adapter.label-bias"] = (objective, quantization) == (PROFILED, "nf4")
    config = config_of(settings | SERVERS | asked, cohort__available=2, evaluate__every=0)
    folder = serve_live(config, clients)
    live = RunResult.read(folder)
    assert live.final_round == config.federated_rounds + asked["adapter.label-bias"]
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
