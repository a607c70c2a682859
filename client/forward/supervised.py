"""Computation of the last block only at the positions that are read.

After the last attention no information passes between positions, and only a few positions of a
prompt are read. So the queries of the attention and the layers after the attention need only these
positions. Keys and values need all positions.

Architectures differ in the parts of a block, so the position-wise parts are found by trial. In the
trial, one position is read, and all other positions of a part's input and output are NaN. The part
is position-wise if the output of the body at the read position is finite.
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
    """Return the largest parts of a block that need only the positions that are read.

    Args:
        block: the last block.
        is_linear: function that recognizes linear layers; parts without linear layers are left out,
            because they cost little.
        run: function that runs the body, including the block, on one sequence of at least three
            tokens, and returns the body's output [1, S, hidden].
    """

    def is_position_wise(module: nn.Module) -> bool:
        try:
            with _nan_at_other_positions(module):
                output = run()
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            return False
        return bool(torch.isfinite(output[:, _middle(output)]).all())

    def search(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if any(map(is_linear, child.modules())):
                if is_position_wise(child):
                    yield child
                elif not is_linear(child):
                    yield from search(child)

    return list(search(block))


@contextmanager
def run_at_positions(
    modules: Iterable[nn.Module], shape: tuple[int, ...], rows: Tensor, positions: Tensor
) -> Iterator[None]:
    """Make modules compute only chosen positions, as [n, 1, …], and return 0 at other positions.

    Inputs of another shape consist of other rows; for them the modules compute all positions.

    Args:
        modules: modules that map tensors [R, S, …] to tensors [R, S, …].
        shape: (R, S).
        rows: int64 [n], rows of the chosen positions.
        positions: int64 [n], chosen positions in these rows.
    """

    def select(value: Any) -> Any:
        return value[rows, positions][:, None] if has_hidden_shape(value, shape) else value

    def restricted(forward: Forward) -> Forward:
        def run(*args: Any, **kwargs: Any) -> Tensor:
            if not any(has_hidden_shape(value, shape) for value in (*args, *kwargs.values())):
                return forward(*args, **kwargs)
            output = forward(*map(select, args), **{k: select(v) for k, v in kwargs.items()})
            whole = output.new_zeros(*shape, output.shape[-1])
            whole[rows, positions] = output[:, 0]
            return whole

        return run

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(replace_forward(module, restricted(module.forward)))
        yield


@contextmanager
def _nan_at_other_positions(module: nn.Module) -> Iterator[None]:
    """Put NaN into a module's input and output at all positions except the middle one."""
    forward = module.forward

    def with_nan(value: Any) -> Any:
        if not (isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()):
            return value
        replaced = torch.full_like(value, torch.nan)
        replaced[:, _middle(value)] = value[:, _middle(value)]
        return replaced

    def run(*args: Any, **kwargs: Any) -> Tensor:
        output = forward(*map(with_nan, args), **{k: with_nan(v) for k, v in kwargs.items()})
        if not has_hidden_shape(output, output.shape[:2]):
            raise TypeError(
                "a part is position-wise only if its output has the shape of hidden states"
            )
        result: Tensor = with_nan(output)
        return result

    with replace_forward(module, run):
        yield


@contextmanager
def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace a module's forward function inside the context."""
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
    """Return whether a value is a tensor of shape [R, S, …] for a given (R, S)."""
    return isinstance(value, Tensor) and value.ndim == 3 and value.shape[:2] == shape


def _middle(hidden: Tensor) -> int:
    return hidden.shape[1] // 2
