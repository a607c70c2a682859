"""Work of the last block only at the positions that are read.

Behind the last attention nothing passes from one position to another any more, and of a prompt only
a few positions are read. So the layers that follow it, and its queries, need to see only those; keys
and values need all. Which layers these are differs between architectures and is found by trying:
a layer may be left to the read positions if noise at all others leaves what is read unchanged.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_TOLERANCE = 0.02
"""Of the largest output; rounding is far below, noise in a key or value far above."""


def local_modules(
    block: nn.Module, is_linear: Callable[[nn.Module], bool], run: Callable[[], Tensor]
) -> list[nn.Module]:
    """The largest parts of a block that may be left to the positions that are read.

    Args:
        block: the last one.
        is_linear: whether a module is a linear layer; parts without any are not worth it.
        run: gives the body's output on a probe, [n, S, hidden] with S of at least 3; the block
            must be on the way.
    """
    expected = run()
    rows = torch.arange(len(expected), device=expected.device)
    middle = torch.full_like(rows, expected.shape[1] // 2)
    shape = expected.shape[:2]

    def is_local(module: nn.Module) -> bool:
        try:
            with only_at([module], shape, rows, middle, torch.randn):
                found = run()
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            return False
        difference = (found - expected)[rows, middle].abs().max()
        return bool(difference <= _TOLERANCE * expected.abs().max())

    def search(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if any(map(is_linear, child.modules())):
                if is_local(child):
                    yield child
                elif not is_linear(child):
                    yield from search(child)

    return list(search(block))


@contextmanager
def only_at(
    modules: Iterable[nn.Module],
    shape: tuple[int, ...],
    rows: Tensor,
    positions: Tensor,
    elsewhere: Callable[..., Tensor] = torch.zeros,
) -> Iterator[None]:
    """Inside, modules run on chosen positions only, as [n, 1, …] in the order given.

    Args:
        modules: that take and give tensors [R, S, …].
        shape: (R, S).
        rows: int64 [n], of the chosen positions.
        positions: int64 [n].
        elsewhere: makes what the modules give at all other positions.
    """

    def chosen(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim == 3 and value.shape[:2] == shape:
            return value[rows, positions][:, None]
        return value

    def restricted(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(*args: Any, **kwargs: Any) -> Tensor:
            output = forward(*map(chosen, args), **{k: chosen(v) for k, v in kwargs.items()})
            whole = elsewhere(
                (*shape, output.shape[-1]), dtype=output.dtype, device=output.device
            )
            whole[rows, positions] = output[:, 0]
            return whole

        return run

    with ExitStack() as stack:
        for module in modules:
            module.forward = restricted(module.forward)
            stack.callback(delattr, module, "forward")
        yield
