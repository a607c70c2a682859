"""From a finished run to an adapter that other tools read."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.personalize import personal_ledger
from server.store import read_layout, read_result, replayed
from shared.config import RunConfig
from shared.errors import LedgerError, ModelError, SamaraError
from shared.layout import ADAPTER_GROUP, Layout
from shared.ledger.proving import proven
from shared.model.loading import structure_of
from shared.model.peft import write_peft_adapter
from shared.replay import to_float32, zero_state


def export(run: Path, client: int | None, out: Path) -> dict[str, list[float]]:
    """Write the global model of a run, or a client's personal one, as a PEFT LoRA adapter.

    Args:
        run: folder of a finished run.
        client: whose private rounds are added; None for the global model.
        out: folder of the adapter.

    Returns:
        What PEFT cannot hold and is left out: tensors of the layout beside the adapter's.

    Raises:
        SamaraError: if the run, the client's ledger or the base model cannot be used.
    """
    result = read_result(run)
    config = RunConfig.of(result["config"] | {"out": str(run)}, str(run))
    layout = read_layout(run)
    base = structure_of(config.model.path, config.model.family)
    if base.model_id.hex() != result["model_id"]:
        raise ModelError(
            f"{base.folder}: is not the model of {run}, whose id begins with "
            f"{result['model_id'][:12]}; restore the model's files"
        )
    state = zero_state(layout.size)
    for step in replayed(run):
        state = step.state
    if client is not None:
        state = state + _personal(config, bytes.fromhex(result["run_id"]), layout, client)
    numbers = to_float32(state)
    try:
        write_peft_adapter(base, config.model.path, layout, numbers, out)
    except OSError as error:
        raise SamaraError(f"{out}: cannot be written: {error.strerror}") from error
    return {
        tensor.name: numbers[layout.place(tensor.name)[0]].tolist()
        for tensor in layout.tensors
        if tensor.group != ADAPTER_GROUP
    }


def _personal(config: RunConfig, run_id: bytes, layout: Layout, client: int) -> NDArray[np.int64]:
    if not 0 <= client < config.data.clients:
        raise LedgerError(f"client {client} does not exist: there are {config.data.clients}")
    path = personal_ledger(config, run_id, client)
    if not path.exists():
        raise LedgerError(
            f"{path}: client {client} has no private rounds here; set personal.rounds, or leave "
            "--client out for the global model"
        )
    *_, last = proven(path, layout)
    return last.state
