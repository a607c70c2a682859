"""The ExecuTorch runtime for a phone's program, with numpy arrays as inputs and outputs.

This is the only file of the reference client that uses the runtime's tensors. ExecuTorch's Python
binding represents them as torch tensors. This file therefore imports torch, but computes nothing
with it. The bindings for Kotlin, Swift and C++ do not need torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samara.client.forward.turns import forward_pass
from samara.devices.phone.extra import MISSING, require_executorch
from samara.devices.phone.manifest import Manifest
from samara.shared.errors import DeviceError
from samara.shared.protocol.directions import Distribution
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.protocol.replay_numpy import NumpyBackend

TOLERANCE = 5e-3
"""Maximum difference of a loss in the self-check, in nats."""
TOLERANCE_4_BIT = 1.0
"""Maximum difference of a loss in the self-check with 4-bit weights, in nats.

For these weights, every library rounds inputs differently.
"""


class LoadedProgram(ABC):
    """A loaded program and its manifest, for use by one thread.

    Attributes:
        manifest: manifest of the program.
        layout: layout of the adapter.
        has_readout: whether programs of this class compute a readout.
    """

    has_readout: bool

    def __init__(self, file: Path, manifest: Manifest | None = None) -> None:
        """Load a program.

        Args:
            file: path of the program.
            manifest: manifest of the program; read from the file beside it if not given.

        Raises:
            DeviceError: if ExecuTorch is missing, or program or manifest cannot be used.
        """
        self.manifest = manifest or Manifest.read(file)
        self.layout = Layout.from_json(self.manifest.layout)
        if self.manifest.form != "functional":
            raise DeviceError(
                f"{file}: --form {self.manifest.form} cannot join a run; export with --form "
                "functional"
            )
        if (self.manifest.readout is not None) != self.has_readout:
            kinds = "adapters inside the model", "a readout"
            raise DeviceError(
                f"{file}: this program has {kinds[not self.has_readout]}, but a program with "
                f"{kinds[self.has_readout]} is needed; export it with other adapter.layers"
            )
        self._load(file)

    def _load(self, file: Path) -> None:
        """Load the file into the runtime.

        Raises:
            DeviceError: if the runtime is missing or refuses the file.
        """
        require_executorch()
        self._module = load_module(file)

    @abstractmethod
    def replay(
        self, state: NDArray[np.int64], seeds: NDArray[np.uint64], coefficients: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return state + Σ c·z, int64 [d], for any number of coefficients with unit 2⁻⁴⁰."""

    @abstractmethod
    def check(self) -> float:
        """Run the manifest's self-check.

        Returns:
            The largest difference of a loss, in nats.

        Raises:
            DeviceError: if replay is not exact, or a loss differs too much from the expected one.
        """

    def run(self, method: str, *inputs: NDArray[Any]) -> list[NDArray[Any]]:
        """Run a method and copy its outputs, because the runtime may reuse their memory.

        The call counts as a forward pass, before which `samara.client.forward.turns` may interrupt.
        """
        with forward_pass():
            outputs = run_method(self._module, method, inputs)
            return [output.numpy().copy() for output in outputs]

    def compare(self, exact: bool, losses: NDArray[np.floating]) -> float:
        """Return the largest difference of the self-check's losses [2q, B] from the manifest's.

        Args:
            exact: whether replay gave the expected states.
            losses: losses of the self-check.

        Raises:
            DeviceError: if replay was not exact, or the difference is too large.
        """
        if not exact:
            raise DeviceError(
                "the program's replay is not exact on this machine, so it cannot join a run; "
                "report the device and the ExecuTorch version"
            )
        expected = np.array(self.manifest.check.losses).reshape(-1)
        worst = float(np.abs(losses.reshape(-1) - expected).max())
        most = TOLERANCE_4_BIT if self.manifest.quantization == "8da4w" else TOLERANCE
        if not worst <= most:
            raise DeviceError(
                f"the program's losses differ by up to {worst:.3g} nats from the model's, more "
                f"than {most:g}; export it again, with another --quantization or --delegate"
            )
        return worst


class PhoneProgram(LoadedProgram):
    """The methods of a program with adapters inside the model."""

    has_readout = False

    def step(
        self,
        state: NDArray[np.int64],
        ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        labels: NDArray[np.int64],
        previous: tuple[NDArray[np.uint64], NDArray[np.int64]],
        seeds: NDArray[np.uint64],
        epsilon: float,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
        """Call ``forward`` once; see `samara.devices.phone.program.TrainStepModule`.

        Args:
            state: int64 [d].
            ids: [B, S].
            positions: [B].
            labels: [B].
            previous: at most q seeds and their coefficients with unit 2⁻⁴⁰, which are applied
                first.
            seeds: at most q seeds of directions to try.
            epsilon: ε.

        Returns:
            Scores [2, q, B, labels] and losses [2, q, B] of the given seeds, with +ε first, and the
            state after the update, int64 [d].
        """
        q = self.manifest.queries
        scores, losses, after = self.run(
            "forward",
            state,
            ids,
            positions,
            labels,
            pad(previous[0].view(np.int64), q),
            pad(previous[1], q),
            pad(seeds.view(np.int64), q),
            np.array([epsilon], np.float32),
        )
        tried = max(1, len(seeds))
        scores = scores.reshape(2, q, *scores.shape[1:])[:, :tried]
        return scores, losses.reshape(2, q, -1)[:, :tried], after

    def replay(
        self, state: NDArray[np.int64], seeds: NDArray[np.uint64], coefficients: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return state + Σ c·z, int64 [d], for any number of coefficients with unit 2⁻⁴⁰."""
        size = self.manifest.replay_seeds
        for start in range(0, len(seeds), size):
            some = slice(start, start + size)
            (state,) = self.run(
                "replay",
                state,
                pad(seeds[some].view(np.int64), size),
                pad(coefficients[some], size),
            )
        return state

    def check(self) -> float:
        """Run the manifest's self-check; see `LoadedProgram.check`."""
        check = self.manifest.check
        state = zero_state(self.layout.size)
        seeds = np.array(check.seeds, np.uint64)
        coefficients = np.array(check.coefficients, np.int64)
        moved = self.replay(state, seeds, coefficients)
        nothing = seeds, np.zeros_like(coefficients)
        batch = np.array(check.ids), np.array(check.positions), np.array(check.labels)
        _, losses, same = self.step(state, *batch, nothing, seeds, check.epsilon)
        _, _, stepped = self.step(state, *batch, (seeds, coefficients), seeds, check.epsilon)
        exact = digest(self.layout.hash, moved).hex() == check.digest
        exact = exact and np.array_equal(same, state) and np.array_equal(stepped, moved)
        return self.compare(exact, losses)


class ProgramBackend:
    """A `samara.shared.protocol.replay.Backend` that uses the program's directions."""

    name = "program"

    def __init__(self, program: LoadedProgram) -> None:
        self._program = program

    def fold(
        self,
        state: NDArray[np.int64],
        seeds: NDArray[np.uint64],
        coefficients: NDArray[np.int64],
        distribution: Distribution,
    ) -> None:
        """Add Σ c·z(seed) to the state, in place."""
        state[:] = self._program.replay(state, seeds, coefficients)

    def directions(
        self, seeds: NDArray[np.uint64], count: int, distribution: Distribution, first: int = 0
    ) -> NDArray[np.int16]:
        """Return directions drawn by numpy, because the program does not return its directions."""
        return NumpyBackend().directions(seeds, count, distribution, first)


def load_module(file: Path) -> Any:
    """Load a program as an ExecuTorch module, the class that the phones' bindings also expose.

    Raises:
        DeviceError: if ExecuTorch is missing or refuses the file.
    """
    try:
        import torch  # noqa: F401 - the extension needs its libraries

        # `portable_lib` would import the exporter, only for the class of a warning
        from executorch.extension.pybindings._C import _load_for_executorch
    except (ImportError, OSError) as error:
        raise DeviceError(MISSING.format(error=error)) from error
    try:
        return _load_for_executorch(str(file))
    except RuntimeError as error:
        raise DeviceError(
            f"{file}: this ExecuTorch cannot load the program: {error}; export the program again"
        ) from error


def run_method(module: Any, method: str, inputs: Sequence[NDArray[Any]]) -> list[Any]:
    """Run a method and return its output tensors, whose memory the runtime owns.

    Raises:
        DeviceError: if the runtime reports an error.
    """
    from torch import from_numpy

    tensors = [from_numpy(np.ascontiguousarray(value)) for value in inputs]
    try:
        outputs: list[Any] = module.run_method(method, tensors, clone_outputs=False)
    except RuntimeError as error:
        raise DeviceError(
            f"the program's method {method} failed: {error}; export the program again"
        ) from error
    return outputs


def pad(values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Pad an array with zeros up to a size."""
    whole = np.zeros(size, np.int64)
    whole[: len(values)] = values
    return whole
