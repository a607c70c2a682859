"""What of the first adapted block is the same for all points, and is run for one of them.

At the entry of that block the rows of a pass are one point's, repeated. They differ from the first
adapted layer on. Where adapters are on the feed-forward layers only, the whole attention lies
before it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from client.forward.supervised import replaced
from shared.model.lora_fa import LoRAFALinear, is_linear


def find_parts_without_adapters(block: nn.Module) -> list[nn.Module]:
    """The largest parts of a block that have linear layers and no adapted one.

    Nothing if no layer of the block is adapted: what makes points differ there is not known.
    """

    def search(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if any(isinstance(part, LoRAFALinear) for part in child.modules()):
                if not isinstance(child, LoRAFALinear):
                    yield from search(child)
            elif any(map(is_linear, child.modules())):
                yield child

    return list(search(block)) if any(map(_is_adapted, block.modules())) else []


@contextmanager
def share_across_perturbations(
    block: nn.Module, parts: list[nn.Module], perturbations: int, shape: tuple[int, int]
) -> Iterator[None]:
    """Inside, parts that run before the first adapted layer do so on the rows of one point.

    Args:
        block: the first adapted one.
        parts: of it, from `parts_without_adapters`.
        points: P; the rows of a pass are point by point.
        shape: (rows, tokens) of a pass.
    """
    rows, length = shape
    reached: list[bool] = []

    def own(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(own, value))
        if not isinstance(value, Tensor) or value.ndim < 2 or len(value) != rows:
            return value
        return (
            value[: rows // perturbations] if value.ndim == 4 or value.shape[1] == length else value
        )

    def repeated(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(repeated, value))
        if not isinstance(value, Tensor) or value.ndim < 3:
            return value
        return value.repeat(perturbations, *[1] * (value.ndim - 1))

    def once(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if reached:
                return forward(*args, **kwargs)
            kwargs = {name: own(value) for name, value in kwargs.items()}
            return repeated(forward(*map(own, args), **kwargs))

        return run

    with ExitStack() as stack:
        for module in block.modules():
            if _is_adapted(module):
                handle = module.register_forward_pre_hook(lambda *_: reached.append(True))
                stack.callback(handle.remove)
        for part in parts:
            stack.enter_context(replaced(part, once(part.forward)))
        yield


def _is_adapted(module: nn.Module) -> bool:
    return isinstance(module, LoRAFALinear)
