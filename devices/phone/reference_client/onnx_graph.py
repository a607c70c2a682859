"""An ONNX Runtime graph with numpy arrays as inputs and outputs."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samara.devices.phone.extra import MISSING_ONNX, require_onnx
from samara.shared.errors import DeviceError


class OnnxGraph:
    """A loaded graph, for use by one thread.

    Args:
        file: path of the program.

    Raises:
        DeviceError: if ONNX Runtime is missing or refuses the file.
    """

    def __init__(self, file: Path) -> None:
        require_onnx()
        try:
            import onnxruntime
        except (ImportError, OSError) as error:
            raise DeviceError(MISSING_ONNX.format(error=error)) from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(
                str(file), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's exception classes have no common base
            raise DeviceError(
                f"{file}: this ONNX Runtime cannot load the program: {error}; "
                f"export the program again"
            ) from error
        self._names = [one.name for one in self._session.get_inputs()]

    def run(self, *inputs: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the graph's outputs for its inputs in their order.

        Raises:
            DeviceError: if the runtime reports an error.
        """
        given = {
            name: np.ascontiguousarray(value)
            for name, value in zip(self._names, inputs, strict=True)
        }
        try:
            outputs: list[NDArray[Any]] = self._session.run(None, given)
        except Exception as error:
            raise DeviceError(
                f"ONNX Runtime cannot run the exported program: {error}; export the program again"
            ) from error
        return outputs
