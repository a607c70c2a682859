"""The evaluation of a run's personal model on its owner's validation examples.

Whether it replaces that of an earlier run is decided by these losses (`model_in_use`), also where
no base model is loaded.
"""

import numpy as np
from scipy.special import log_softmax

from samara.client.personal.methods import composition
from samara.client.protocol.client_model import ClientModel
from samara.client.protocol.model_in_use import ValidationFile, ValidationLosses
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.shared.frames.instructions import Split
from samara.shared.model.cache_key import cache_key
from samara.shared.replay import digest
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.rows import hash_examples


def note_validation(resident: ResidentTrainer, run_id: bytes) -> None:
    """Evaluate a run's personal model on the validation examples, and keep the losses.

    Without a private part, under another base model than the loaded one, and for a model and
    examples that were evaluated before, it does nothing. The thread that trains calls it.

    Args:
        resident: the resident trainer.
        run_id: run id, 8 bytes.

    Raises:
        SamaraError: if the files of the run cannot be used or written.
    """
    model = ClientModel.read(resident.folder, resident.config, resident.client, run_id.hex())
    if model.private is None or model.run.model_id != resident.runtime.model_id:
        return
    runtime, data = resident.runtime_of(model.run), resident.data
    parts = composition(model.config.terms, runtime.layout)
    state = parts.model(model.session.state, model.private)
    examples, prompts = data.in_split(Split.VALIDATION), data.tokenized(Split.VALIDATION)
    keys = [hash_examples([example]) for example in examples]
    file, of = ValidationFile(model.run.folder), digest(runtime.layout.hash, state)
    known = file.read()
    name = cache_key("validation 1", of=of, **runtime.score_inputs).hex()
    if known is not None and known.digest == name and known.losses.keys() == set(keys):
        return
    losses = {}
    if keys:
        try:
            scores = runtime.scores(state, prompts.prompts)
        finally:
            resident.runtime.use_threads()  # an earlier run may have others
        if not isinstance(runtime.task, GenerationTask):
            scores = log_softmax(scores.astype(np.float64), axis=1)
        chosen = scores[np.arange(len(keys)), prompts.labels]
        losses = {key: -float(score) for key, score in zip(keys, chosen, strict=True)}
    file.write(ValidationLosses(name, losses, resident.config.model.path))
