"""Tokenization of a phone's examples into token ids up to the label word."""

import json
from pathlib import Path
from typing import Any

from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import load_run
from samara.devices.phone.manifest import Manifest
from samara.shared.errors import DataError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.settings.config import RunConfig
from samara.shared.storage.files import check_requested, write_requested

_KIND = b'"ids": ['


def write_examples(config: RunConfig, program: Path, client: int | None, out: Path) -> int:
    """Write a phone's examples as JSONL.

    Args:
        config: run configuration with model, task and data.
        program: path of the program, which must have the same model. Longer texts are cut to the
            program's number of tokens.
        client: index of the client among ``data.clients``; None means all examples.
        out: path of the file to write.

    Returns:
        The number of examples.

    Raises:
        SamaraError: if model, task, data or program cannot be used, or do not match.
    """
    check_requested(out, _KIND)
    manifest = Manifest.read(program)
    length = min(manifest.sequence, config.model.max_length)
    model = config.model.model_copy(update={"max_length": length})
    runtime, source = load_run(config.model_copy(update={"model": model}))
    if runtime.model_id.hex() != manifest.model_id:
        raise DataError(
            f"{program}: this program was exported from a model other than "
            f"{config.model.path}; give --model"
        )
    data = source.undivided(0) if client is None else source.share_of(client, config.data.clients)
    text = examples_as_jsonl(data)
    if (longest := _longest_answer(data)) > manifest.answer_tokens > 0:
        raise DataError(
            f"{program}: this program accepts candidates of at most {manifest.answer_tokens} "
            f"tokens, but a candidate has {longest}; export it with --answer-tokens {longest}"
        )
    write_requested(out, text.encode(), _KIND)
    return text.count("\n")


def examples_as_jsonl(data: ClientData) -> str:
    """Return a client's examples as lines of JSON objects with ids, label and split.

    For answers of several tokens, a line also has the tokens of every candidate.
    """
    lines = []
    for split in Split:
        examples = data.tokenized(split)
        for prompt, label in zip(examples.prompts, examples.labels.tolist(), strict=True):
            row: dict[str, Any] = {"label": label, "split": split.name.lower()}
            row["ids"] = list(prompt.sequences[0])
            if prompt.targets:
                row["ids"] = row["ids"][: prompt.supervised[0][0] + 1]
                row["candidates"] = [list(tokens) for tokens in prompt.targets]
            lines.append(json.dumps(row) + "\n")
    return "".join(lines)


def _longest_answer(data: ClientData) -> int:
    """Return the number of tokens of the longest answer with several tokens; 0 if there is none."""
    prompts = [prompt for split in Split for prompt in data.tokenized(split).prompts]
    return max((len(tokens) for prompt in prompts for tokens in prompt.targets), default=0)
