"""Tokenization of a phone's examples: token ids up to where the label word follows."""

import json
from pathlib import Path

from client.training.client_data import ClientData
from client.training.model_runtime import load_run
from devices.phone.manifest import Manifest
from shared.config import RunConfig
from shared.errors import DataError, DeviceError
from shared.files import write_durably
from shared.frames.instructions import Split


def write_examples(config: RunConfig, program: Path, client: int | None, out: Path) -> int:
    """Write a phone's examples as JSONL.

    Args:
        config: run configuration with model, task and data.
        program: program whose model must be the same; longer texts are cut to its length.
        client: index of the client out of ``data.clients``; None takes all examples.
        out: file to write.

    Returns:
        The number of examples.

    Raises:
        SamaraError: if model, task, data or program cannot be used, or do not match.
    """
    manifest = Manifest.read(program)
    length = min(manifest.sequence, config.model.max_length)
    model = config.model.model_copy(update={"max_length": length})
    runtime, source = load_run(config.model_copy(update={"model": model}))
    if runtime.model_id.hex() != manifest.model_id:
        raise DataError(f"{program}: exported from another model than {config.model.path}")
    text = examples_as_jsonl(
        source.undivided(0) if client is None else source.share_of(client, config.data.clients)
    )
    try:
        write_durably(out, text.encode())
    except OSError as error:
        raise DeviceError(f"{out}: cannot be written: {error.strerror}") from error
    return text.count("\n")


def examples_as_jsonl(data: ClientData) -> str:
    """Return a client's examples as lines of JSON objects with ids, label and split."""
    lines = []
    for split in Split:
        examples = data.tokenized(split)
        for prompt, label in zip(examples.prompts, examples.labels.tolist(), strict=True):
            row = {"ids": list(prompt.sequences[0]), "label": label, "split": split.name.lower()}
            lines.append(json.dumps(row) + "\n")
    return "".join(lines)
