"""The optional dependencies of phones: ExecuTorch, ONNX and its runtime, and WebSocket."""

import importlib.util

from samara.shared.errors import DeviceError

MISSING = (
    "a program for phones needs ExecuTorch, which cannot be used here ({error}); install it with "
    "pip install 'samara-fl[phone]'"
)
MISSING_ONNX = (
    "a program for ONNX Runtime needs onnx, onnxscript and onnxruntime, which cannot be used here "
    "({error}); install them with pip install 'samara-fl[onnx]'"
)


def require_executorch() -> None:
    """Check that ExecuTorch is installed.

    Raises:
        DeviceError: if ExecuTorch is not installed.
    """
    if importlib.util.find_spec("executorch") is None:
        raise DeviceError(MISSING.format(error="it is not installed"))


def require_onnx() -> None:
    """Check that ONNX, its exporter and its runtime are installed.

    Raises:
        DeviceError: if a package is missing; the message names it.
    """
    names = "onnx", "onnxscript", "onnxruntime"
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise DeviceError(MISSING_ONNX.format(error=f"{', '.join(missing)}: not installed"))


def require_web() -> None:
    """Check that the WebSocket library, through which browsers attach, is installed.

    Raises:
        DeviceError: if it is not installed.
    """
    if importlib.util.find_spec("websockets") is None:
        raise DeviceError(
            "--web needs websockets, which is not installed; install it with "
            "pip install 'samara-fl[web]'"
        )
