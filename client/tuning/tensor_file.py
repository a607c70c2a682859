"""Files of named tensors from which a first-order run is continued."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from samara.shared.errors import TrainingError
from samara.shared.storage.files import write_durably


class TensorFile:
    """A file with the tensors after a training step, written completely or not at all.

    Args:
        path: path of the file.
        settings_hash: hash of everything that determines the run's results, in hexadecimal.
    """

    def __init__(self, path: Path, settings_hash: str) -> None:
        self._path, self._hash = path, settings_hash

    @property
    def exists(self) -> bool:
        """Return whether the file has been written."""
        return self._path.exists()

    def write(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Write the tensors after a step.

        Raises:
            TrainingError: if the file cannot be written.
        """
        metadata = {"step": str(step), "settings": self._hash}
        content = {name: tensor.contiguous() for name, tensor in tensors.items()}
        try:
            write_durably(self._path, save(content, metadata))
        except OSError as error:
            raise TrainingError(
                f"{self._path}: cannot be written: {error.strerror}; free space on this disk, or "
                "make the folder writable"
            ) from error

    def step(self) -> int:
        """Return the step after which the file was written.

        Raises:
            TrainingError: if the file is damaged, or belongs to other settings.
        """
        try:
            with safe_open(self._path, "pt") as stored:
                metadata = stored.metadata() or {}
            if metadata.get("settings") != self._hash:
                raise TrainingError(
                    f"{self._path}: the file belongs to other settings; use another folder"
                )
            return int(metadata["step"])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise self.damaged(error) from error

    def read(self, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Read all tensors of the file.

        Args:
            expected: tensors whose names and shapes the file must have.

        Raises:
            TrainingError: if the file is damaged, or lacks an expected tensor.
        """
        try:
            with safe_open(self._path, "pt") as stored:
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise self.damaged(error) from error
        for name, tensor in expected.items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                raise self.damaged(f"it lacks the tensor {name} {tuple(tensor.shape)}")
        return tensors

    def damaged(self, error: object) -> TrainingError:
        """Return the error for a damaged file."""
        return TrainingError(f"{self._path}: is damaged: {error}; begin the run in another folder")


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the hash of tensors' names, shapes and float32 values, in hexadecimal."""
    whole = hashlib.sha256()
    for name, tensor in tensors.items():
        whole.update(f"{name} {tuple(tensor.shape)}".encode())
        whole.update(tensor.detach().float().cpu().numpy().astype("<f4").tobytes())
    return whole.hexdigest()
