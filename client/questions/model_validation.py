"""Evaluation of a run's personal model on its owner's validation examples.

The losses decide whether the model replaces an earlier run's model (`model_in_use`). With stored
losses, this decision needs no base model in memory.
"""

import numpy as np
from scipy.special import log_softmax

from samara.client.personal.few_examples import QualityByExamples, quality_by_examples
from samara.client.personal.lbfgs import fit_softmax
from samara.client.personal.methods import composition
from samara.client.personal.softmax_fit import Examples
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.questions.client_model import ClientModel
from samara.client.questions.model_in_use import ValidationFile, ValidationLosses
from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import ModelRuntime
from samara.shared.model.cache_key import cache_key
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.replay import digest
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.rows import hash_examples


def note_validation(resident: ResidentTrainer, run_id: bytes) -> None:
    """Evaluate a run's personal model on the validation examples, and store the losses.

    This function does nothing if the model has no private part or another base model than the
    loaded one, or if the model was already evaluated on the same examples. The training thread
    calls this function.

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
    losses: dict[str, float] = {}
    by_examples: tuple[QualityByExamples, ...] = ()
    if keys:
        try:
            scores = runtime.scores(state, prompts.prompts)
            by_examples = _quality_by_examples(model, runtime, data)
        finally:
            resident.runtime.use_threads()  # an earlier run may have changed the number of threads
        if not isinstance(runtime.task, GenerationTask):
            scores = log_softmax(scores.astype(np.float64), axis=1)
        chosen = scores[np.arange(len(keys)), prompts.labels]
        losses = {key: -float(score) for key, score in zip(keys, chosen, strict=True)}
    file.write(ValidationLosses(name, losses, resident.config.model.path, by_examples))


def _quality_by_examples(
    model: ClientModel, runtime: ModelRuntime, data: ClientData
) -> tuple[QualityByExamples, ...]:
    """Return the personal model's quality by number of training examples.

    The result is empty if it needs further forward passes, or if no solver fits the private part.
    """
    if model.config.method != "readout" or not runtime.has_readout_alone:
        return ()
    state, prior = model.session.state, model.session.common_prior(model.config.terms)
    if prior.intercept is not None:
        state = state - prior.intercept

    def examples(split: Split) -> Examples:
        own = data.tokenized(split)
        scores, features = runtime.scores(state, own.prompts), runtime.features(own.prompts)
        return Examples(scores.astype(np.float64), own.labels, features.astype(np.float64))

    train, validation = examples(Split.TRAIN), examples(Split.VALIDATION)
    return quality_by_examples(train, validation, fit_softmax, prior.deviation)
