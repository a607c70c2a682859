"""Work of the last block only at the positions that are read.

Behind the last attention nothing passes from one position to another any more, and of a prompt
only a few positions are read. So the layers that follow it, and its queries, need to see only
those; keys and values need all. Which parts of a block these are differs between architectures and
is found by trying: a part is local if NaN in its input and output at all other positions does not
reach the position that is read.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Forward = Callable[..., Tensor]


def find_position_wise_modules(
    block: nn.Module, is_linear: Callable[[nn.Module], bool], run: Callable[[], Tensor]
) -> list[nn.Module]:
    """The largest parts of a block that may be left to the positions that are read.

    Args:
        block: the last one.
        is_linear: whether a module is a linear layer; parts without any are not worth it.
        run: gives the body's output on a probe of one sequence of at least three tokens,
            [1, S, hidden]; the block must be on the way.
    """

    def is_local(module: nn.Module) -> bool:
        try:
            with _nan_around(module):
                found = run()
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            return False
        return bool(torch.isfinite(found[:, _middle(found)]).all())

    def search(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if any(map(is_linear, child.modules())):
                if is_local(child):
                    yield child
                elif not is_linear(child):
                    yield from search(child)

    return list(search(block))


@contextmanager
def run_at_positions(
    modules: Iterable[nn.Module], shape: tuple[int, ...], rows: Tensor, positions: Tensor
) -> Iterator[None]:
    """Inside, modules run on chosen positions only, as [n, 1, …], and give 0 elsewhere.

    What has another shape, because it runs on other rows, runs as ever.

    Args:
        modules: that take and give tensors [R, S, …].
        shape: (R, S).
        rows: int64 [n], of the chosen positions.
        positions: int64 [n].
    """

    def chosen(value: Any) -> Any:
        return value[rows, positions][:, None] if has_hidden_shape(value, shape) else value

    def restricted(forward: Forward) -> Forward:
        def run(*args: Any, **kwargs: Any) -> Tensor:
            if not any(has_hidden_shape(value, shape) for value in (*args, *kwargs.values())):
                return forward(*args, **kwargs)
            output = forward(*map(chosen, args), **{k: chosen(v) for k, v in kwargs.items()})
            whole = output.new_zeros(*shape, output.shape[-1])
            whole[rows, positions] = output[:, 0]
            return whole

        return run

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(replaced(module, restricted(module.forward)))
        yield


@contextmanager
def _nan_around(module: nn.Module) -> Iterator[None]:
    """Inside, a module gets and gives NaN at all positions but the middle one."""
    forward = module.forward

    def noisy(value: Any) -> Any:
        if not (isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()):
            return value
        noise = torch.full_like(value, torch.nan)
        noise[:, _middle(value)] = value[:, _middle(value)]
        return noise

    def run(*args: Any, **kwargs: Any) -> Tensor:
        output = forward(*map(noisy, args), **{k: noisy(v) for k, v in kwargs.items()})
        if not has_hidden_shape(output, output.shape[:2]):
            raise TypeError("a part that gives something else than hidden states is not local")
        result: Tensor = noisy(output)
        return result

    with replaced(module, run):
        yield


@contextmanager
def replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside, a module does something else when it is called."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before


def has_hidden_shape(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether a value is a tensor [R, S, …] of the shape (R, S)."""
    return isinstance(value, Tensor) and value.ndim == 3 and value.shape[:2] == shape


def _middle(hidden: Tensor) -> int:
    return hidden.shape[1] // 2
