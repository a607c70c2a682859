"""Suppressed imports of libraries that a model on a CPU does not need."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def triton_hidden() -> Iterator[None]:
    """Prevent imports of triton inside the context if torch has no GPU.

    If triton is installed, transformers imports it together with torch's compiler. Triton needs 70
    MiB of memory and compiles only for GPUs.
    """
    if torch.cuda.is_available() or "triton" in sys.modules:
        yield
        return
    sys.modules["triton"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["triton"]
