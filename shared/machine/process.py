"""This process's machine: cores, memory, and log levels of libraries."""

import logging
import os
import resource
import sys

_NOISY = ("executorch", "torchao", "torch.utils._pytree", "bitsandbytes")
"""Loggers of libraries that warn at every import about kernels for other hardware."""

HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""Environment variable that makes PyTorch allocate large tensors in huge pages.

Set it before PyTorch is imported.
"""


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory_bytes() -> int:
    """Return this process's peak resident memory so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts KiB


def silence_libraries() -> None:
    """Limit the loggers of noisy libraries to errors; call this before importing the libraries."""
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)


def log_to_stderr() -> None:
    """Log Samara's progress to standard error, and silence gRPC's log."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # Samara logs connection errors itself
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("samara").setLevel(logging.INFO)
