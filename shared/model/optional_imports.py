"""Imports of other libraries that a model on a CPU has no use for."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def triton_hidden() -> Iterator[None]:
    """Hide triton from imports where torch has no GPU.

    transformers imports it with torch's compiler wherever it is installed. It takes 70 MiB, and
    compiles for GPUs alone.
    """
    if torch.cuda.is_available() or "triton" in sys.modules:
        yield
        return
    sys.modules["triton"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["triton"]
