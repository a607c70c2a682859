"""What libraries say at every start, and no operator can do anything about."""

import logging

_NOISY = ("executorch", "torchao", "torch.utils._pytree", "bitsandbytes")
"""The extras bring kernels for other machines, which say that they cannot be loaded."""


def hush() -> None:
    """Have these libraries tell of errors only; to be called before they are imported."""
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
