"""Facts about an exported model's base model, for users of other software."""

from dataclasses import dataclass, replace
from pathlib import Path

from samara.shared.model.loading import BaseModel
from samara.shared.model.model_folder import weight_files
from samara.shared.model.prompt_frame import PromptFrame, frame_of
from samara.shared.model.sentence_pooling import SentencePooling
from samara.shared.model.structure import Family
from samara.shared.model.tokenizer import load_tokenizer
from samara.shared.settings.sections import EMBEDDED_MODEL, ModelSettings
from samara.shared.storage.files import file_hash
from samara.shared.tasks.kinds import AUTO_FORM, GenerationTask, Task

_HUB_FOLDER = "models--"


def _frame(base: BaseModel, task: Task) -> PromptFrame | None:
    """Return the prompt's frame, or None if the code in the card builds the prompt without one."""
    if isinstance(task, GenerationTask) or task.form == AUTO_FORM or base.family != "causal":
        return None
    read = base if base.tokenizer else replace(base, tokenizer=load_tokenizer(base.folder))
    return frame_of(read, task)


@dataclass(frozen=True)
class CardBase:
    """Facts about the base model that a model card states.

    Attributes:
        place: argument of `from_pretrained`: hub id, or folder on the exporting machine.
        hub_id: name on the Hugging Face hub; empty if unknown.
        weights: SHA-256 (hex) of each weights file by name; empty if there is a `hub_id`.
        family: family of the model.
        dtype: compute type used in training.
        blocks: number of blocks in use, counted from the lowest; 0 means all.
        max_length: maximum number of tokens of a text together with its question.
        pooling: modules that follow the network in a sentence encoder.
        frame: prompt frame if the task sets the prompt form of a causal LM, otherwise None.
        is_embedded: whether the base model is the small model shipped with Samara.
    """

    place: str
    hub_id: str
    weights: dict[str, str]
    family: Family
    dtype: str = "float32"
    blocks: int = 0
    max_length: int = 128
    pooling: SentencePooling | None = None
    frame: PromptFrame | None = None
    is_embedded: bool = False

    @classmethod
    def of(cls, model: ModelSettings, base: BaseModel, task: Task) -> "CardBase":
        """Return the facts about a loaded base model.

        Args:
            model: settings of the model.
            base: the model; its weights are not needed.
            task: task to which the model was adapted.

        Raises:
            ModelError: if the model's tokenizer is needed but cannot be used.
        """
        is_embedded = model.path == EMBEDDED_MODEL
        hub_id = "" if is_embedded else hub_id_of(model.path, base.folder)
        files = () if hub_id else weight_files(base.folder)
        return cls(
            place=hub_id or str(base.folder),
            hub_id=hub_id,
            weights={file.name: file_hash(file).hex() for file in files},
            family=base.family,
            dtype=model.dtype,
            blocks=base.depth,
            max_length=min(model.max_length, base.context),
            pooling=base.pooling if base.family == "encoder" else None,
            frame=_frame(base, task),
            is_embedded=is_embedded,
        )

    def describe(self) -> str:
        """Return sentences for the card that identify the base model and say where to get it."""
        if self.hub_id:
            return f"The base model is `{self.hub_id}` on the Hugging Face hub."
        files = "; ".join(f"`{name}` `{own}`" for name, own in self.weights.items())
        if self.is_embedded:
            how = (
                "It comes with Samara (`pip install samara-fl`) as `samara/shared/model/embedded`."
            )
        else:
            how = (
                f"On the machine that wrote this card, the model is in `{self.place}`. Elsewhere, "
                "use a copy of that folder, or a download whose weights have the same hash. The "
                "Hugging Face hub shows a file's hash on the file's page."
            )
        return f"The base model is identified by the SHA-256 of its weights: {files}. {how}"


def hub_id_of(path: str, folder: Path) -> str:
    """Return the name of a model on the Hugging Face hub, or an empty text if it is unknown.

    The field ``_name_or_path`` in the configuration is not used. It names the model from which the
    base model was fine-tuned.

    Args:
        path: ``model.path`` of the settings.
        folder: folder to which the path resolves.
    """
    for part in folder.parts:
        if part.startswith(_HUB_FOLDER):
            return part.removeprefix(_HUB_FOLDER).replace("--", "/")
    return "" if Path(path).expanduser().exists() else path
