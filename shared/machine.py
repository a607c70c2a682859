"""The process on this machine: its cores, its memory, and the log level of libraries in it."""

import logging
import os
import resource
import sys

_NOISY = ("executorch", "torchao", "torch.utils._pytree", "bitsandbytes")
"""Loggers of libraries that warn at every import about kernels for other machines."""

HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""The variable with which PyTorch has large tensors lie in huge pages, from its start on."""


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory_bytes() -> int:
    """Return the most resident memory that this process has had so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts KiB


def silence_libraries() -> None:
    """Set the loggers of noisy libraries to errors only; call it before they are imported."""
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
