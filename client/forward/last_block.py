"""Selection of supervised positions in the last block, after its attention.

Attention is the last part of a model that mixes positions. Its output, and the sums and norms that
follow, are needed only at the positions that are read. A block adds the output of attention to the
block's input, so the input is reduced to the same positions. The parts that receive this input
directly still receive it at all positions.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from samara.client.forward.supervised import has_hidden_shape, replace_forward
from samara.shared.model.layer_selection import is_linear


class PositionSelector:
    """Reduction of a block's hidden states to chosen positions.

    Args:
        shape: (R, S), rows and tokens of the complete hidden states.
        rows: int64 [n], rows of the chosen positions.
        positions: int64 [n], chosen positions in these rows.
        repeats: number of copies of each row, one per perturbation, made at the selection; 1 if the
            rows are already repeated.

    Attributes:
        full_input_parts: parts of the block with linear layers whose input had all positions.
    """

    def __init__(
        self, shape: tuple[int, int], rows: Tensor, positions: Tensor, repeats: int = 1
    ) -> None:
        self._shape, self._rows, self._positions = shape, rows, positions
        self._repeats = repeats
        self._whole: Tensor | None = None
        self._selected: Tensor | None = None
        self.full_input_parts: list[nn.Module] = []

    def select(self, hidden: Tensor) -> Tensor:
        """Return the chosen positions of a block's input [R, S, hidden], [repeats·n, 1, hidden]."""
        self._whole, self._selected = hidden, self._reduce(hidden)
        return self._selected

    @contextmanager
    def applied_to(self, block: nn.Module) -> Iterator[None]:
        """Make a block reduce its input to the chosen positions after its attention."""
        with ExitStack() as stack:
            for part in block.children():
                stack.enter_context(replace_forward(part, self._wrap(part, part.forward)))
            yield

    def _wrap(self, part: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        has_linear_layers = any(map(is_linear, part.modules()))

        def run(*args: Any, **kwargs: Any) -> Any:
            args = tuple(map(self._restore, args))
            kwargs = {name: self._restore(value) for name, value in kwargs.items()}
            output = forward(*args, **kwargs)
            if not has_linear_layers:
                return output
            if any(has_hidden_shape(value, self._shape) for value in (*args, *kwargs.values())):
                self.full_input_parts.append(part)
            return self._reduce(output)

        return run

    def _restore(self, value: Any) -> Any:
        return self._whole if value is self._selected else value

    def _reduce(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._reduce, value))
        if not has_hidden_shape(value, self._shape):
            return value
        return value[self._rows, self._positions][:, None].repeat(self._repeats, 1, 1)
