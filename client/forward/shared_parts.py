"""Parts of the first adapted block that are computed once for all perturbations.

At the block's input, a pass consists of one copy of its rows per perturbation. The copies are equal
until the first adapted layer. If only feed-forward layers have adapters, the whole attention comes
before that layer, and one copy is enough for it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from samara.client.forward.supervised import replace_forward
from samara.shared.model.layer_selection import is_linear
from samara.shared.model.lora_fa import LoRAFALinear


def find_parts_without_adapters(block: nn.Module) -> list[nn.Module]:
    """Find the largest parts of a block with linear layers but without adapted layers.

    The list is empty if no layer of the block is adapted, because it is then unknown where
    perturbations begin to differ.
    """

    def search(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if any(map(_is_adapted, child.modules())):
                if not _is_adapted(child):
                    yield from search(child)
            elif any(map(is_linear, child.modules())):
                yield child

    return list(search(block)) if any(map(_is_adapted, block.modules())) else []


@contextmanager
def share_across_perturbations(
    block: nn.Module, parts: list[nn.Module], perturbations: int, shape: tuple[int, int]
) -> Iterator[None]:
    """Make the parts before the first adapted layer compute one copy of the rows for all.

    Args:
        block: the first adapted block.
        parts: parts of the block, from `find_parts_without_adapters`.
        perturbations: number P of perturbations; a pass has one copy of its rows for each.
        shape: (rows, tokens) of a pass.
    """
    rows, length = shape
    adapted_layers_reached: list[bool] = []

    def first_rows(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(first_rows, value))
        if not isinstance(value, Tensor) or value.ndim < 2 or len(value) != rows:
            return value
        per_row = value.ndim == 4 or value.shape[1] == length
        return value[: rows // perturbations] if per_row else value

    def repeat(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(repeat, value))
        if not isinstance(value, Tensor) or value.ndim < 3:
            return value
        return value.repeat(perturbations, *[1] * (value.ndim - 1))

    def computed_once(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if adapted_layers_reached:
                return forward(*args, **kwargs)
            kwargs = {name: first_rows(value) for name, value in kwargs.items()}
            return repeat(forward(*map(first_rows, args), **kwargs))

        return run

    with ExitStack() as stack:
        for module in block.modules():
            if _is_adapted(module):
                handle = module.register_forward_pre_hook(
                    lambda *_: adapted_layers_reached.append(True)
                )
                stack.callback(handle.remove)
        for part in parts:
            stack.enter_context(replace_forward(part, computed_once(part.forward)))
        yield


def _is_adapted(module: nn.Module) -> bool:
    return isinstance(module, LoRAFALinear)
