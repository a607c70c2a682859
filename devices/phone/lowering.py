"""Lowering of torch modules to an ExecuTorch program."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from samara.devices.phone.extra import MISSING
from samara.devices.phone.manifest import Delegate
from samara.shared.errors import DeviceError


class Method(NamedTuple):
    """A method of a program.

    Attributes:
        module: module that computes the method.
        inputs: example inputs of the module.
        sizes: variable dimensions of each input, as `torch.export` expects them; None if all
            dimensions are fixed.
    """

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    sizes: tuple[dict[int, torch.export.Dim] | None, ...] | None = None

    def export(self) -> torch.export.ExportedProgram:
        """Return the method's graph."""
        return torch.export.export(self.module.eval(), self.inputs, dynamic_shapes=self.sizes)


Methods = Mapping[str, Method]
"""The methods of a program by name."""


def lower_to_executorch(
    methods: Methods,
    delegate: Delegate,
    initialized: tuple[str, ...] = (),
    quantized_inputs: bool = False,
) -> bytes:
    """Lower modules to a program with one method per module.

    Args:
        methods: methods by name.
        delegate: ``xnnpack`` delegates the float part of ``forward`` to XNNPACK.
        initialized: patterns of mutable buffers whose initial values are stored in the program.
        quantized_inputs: whether XNNPACK takes only the products with dynamically quantized inputs.
            XNNPACK's greedy partitioner would split such products, and outputs would be wrong by a
            factor of 10²³.

    Returns:
        The content of a ``.pte`` file.

    Raises:
        DeviceError: if ExecuTorch is missing.
    """
    with warnings_suppressed():
        try:
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
                XnnpackDynamicallyQuantizedPartitioner,
                XnnpackPartitioner,
            )
            from executorch.exir import (
                EdgeCompileConfig,
                ExecutorchBackendConfig,
                to_edge_transform_and_lower,
            )
            from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
        except (ImportError, OSError) as error:
            raise DeviceError(MISSING.format(error=error)) from error
        with torch.no_grad():
            exported = {name: method.export() for name, method in methods.items()}
        # This operator is not a core operator, but every runtime has a kernel for it.
        shift = torch.ops.aten.bitwise_right_shift.Tensor_Scalar
        kind = XnnpackDynamicallyQuantizedPartitioner if quantized_inputs else XnnpackPartitioner
        edge = to_edge_transform_and_lower(
            exported,
            partitioner={"forward": [kind()]} if delegate == "xnnpack" else None,
            compile_config=EdgeCompileConfig(
                _core_aten_ops_exception_list=[
                    shift,
                    torch.ops.aten.bitwise_right_shift.Tensor,
                ]
            ),
        )
        passes: list[Any] = [InitializedMutableBufferPass(list(initialized))] if initialized else []
        return bytes(edge.to_executorch(ExecutorchBackendConfig(passes=passes)).buffer)


@contextmanager
def warnings_suppressed() -> Iterator[None]:
    """Suppress warnings of exporters and their libraries, which a user cannot act on."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
