"""Clients that take part in a run and export their models."""

from pathlib import Path
from typing import Any

import torch
from federations import Live, Settings, config_of
from residents import device_settings, resident
from typer.testing import CliRunner

from samara.client.trainer.trainer_service import serve_trainer
from samara.client.training.model_runtime import ModelRuntime
from samara.devices.live.commands import app as client_app
from samara.server.app import serve
from samara.shared.model.loading import load_structure

IDS = torch.tensor([[7, 9, 11, 13, 15, 8]])


CLIENT = 7


def logits_of(folder: Path) -> torch.Tensor:
    import transformers

    loader = {
        "causal": transformers.AutoModelForCausalLM,
        "masked": transformers.AutoModelForMaskedLM,
        "encoder": transformers.AutoModel,
    }[load_structure(str(folder)).family]
    model = loader.from_pretrained(folder, local_files_only=True).eval()
    with torch.inference_mode():
        output: torch.Tensor = model(input_ids=IDS)[0]
    return output


def take_part(settings: Settings, home: Path, out: Path, **changes: Any) -> ModelRuntime:
    """Return the runtime of a live client after a run; its folder is that of a stopped client."""
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    few = {"cohort.available": 1, "evaluate.every": 0, "personal.rounds": 2, "out": str(out)}
    config = config_of(settings | theirs | few, **changes)
    mine, socket = resident(settings, CLIENT, home), home / "a.sock"
    with serve_trainer(lambda: mine, socket):
        serve(config, Live([socket], config))
    device_settings(settings, CLIENT, home).write()
    return mine.runtime


def run_export(home: Path, out: Path, *options: str) -> Any:
    arguments = ["export", "--home", str(home), "--out", str(out), *options]
    return CliRunner().invoke(client_app, arguments)


def other_base(folder: Path, like: Path) -> Path:
    """Another base model with the same tokenizer."""
    import transformers

    torch.manual_seed(1)
    config = transformers.AutoConfig.from_pretrained(like, local_files_only=True)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(like, local_files_only=True).save_pretrained(folder)
    return folder
