"""The last block goes on with the positions that are read only, behind its attention.

Attention is the last part that looks at other positions. What it gives is needed only where
something is read, and so are the sums and norms behind it. A block adds what attention gives to its
own input, so the input is cut down as well, while parts that are given just this input see all of
it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from client.forward.supervised import has_hidden_shape, replaced
from shared.model.lora_fa import is_linear


class Cut:
    """Cuts hidden states down to chosen positions.

    Args:
        shape: (R, S) of hidden states that are whole.
        rows: int64 [n], of the chosen positions.
        positions: int64 [n].
        points: how often the rows are repeated when they are cut; 1 if they are repeated already.

    Attributes:
        seeing_all: parts of the block with linear layers that were given all positions.
    """

    def __init__(
        self, shape: tuple[int, int], rows: Tensor, positions: Tensor, perturbations: int = 1
    ) -> None:
        self._shape, self._rows, self._positions = shape, rows, positions
        self._points = perturbations
        self._whole: Tensor | None = None
        self._entering: Tensor | None = None
        self.seeing_all: list[nn.Module] = []

    def enter(self, hidden: Tensor) -> Tensor:
        """What the block is to be given, [points·n, 1, hidden], in place of [R, S, hidden]."""
        self._whole, self._entering = hidden, self._cut(hidden)
        return self._entering

    @contextmanager
    def within(self, block: nn.Module) -> Iterator[None]:
        """Inside, a block that is given what `enter` gives comes to what it comes to at the chosen
        positions if it is given everything."""
        with ExitStack() as stack:
            for part in block.children():
                stack.enter_context(replaced(part, self._of_part(part, part.forward)))
            yield

    def _of_part(self, part: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        attends = any(map(is_linear, part.modules()))

        def run(*args: Any, **kwargs: Any) -> Any:
            args = tuple(map(self._uncut, args))
            kwargs = {name: self._uncut(value) for name, value in kwargs.items()}
            output = forward(*args, **kwargs)
            if not attends:
                return output
            if any(has_hidden_shape(value, self._shape) for value in (*args, *kwargs.values())):
                self.seeing_all.append(part)
            return self._cut(output)

        return run

    def _uncut(self, value: Any) -> Any:
        return self._whole if value is self._entering else value

    def _cut(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._cut, value))
        if not has_hidden_shape(value, self._shape):
            return value
        return value[self._rows, self._positions][:, None].repeat(self._points, 1, 1)
