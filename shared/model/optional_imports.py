"""Suppressed imports of libraries that a model on a CPU does not need."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def triton_hidden() -> Iterator[None]:
    """Prevent imports of triton inside the context if torch has no GPU.

    Otherwise transformers would import an installed triton together with torch's compiler. Triton
    takes 70 MiB of memory, and is of use only on GPUs.
    """
    if torch.cuda.is_available() or "triton" in sys.modules:
        yield
        return
    sys.modules["triton"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["triton"]
