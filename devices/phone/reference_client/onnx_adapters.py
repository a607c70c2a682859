"""The ONNX Runtime program of adapters inside the model, completed by numpy code.

The graph computes scores at given adapters. As in the browser's TypeScript code, directions, replay
and losses are computed outside the graph.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samara.client.forward.turns import forward_pass
from samara.devices.phone.reference_client.losses import cross_entropies
from samara.devices.phone.reference_client.onnx_graph import OnnxGraph
from samara.devices.phone.reference_client.runtime import PhoneProgram
from samara.shared.protocol.directions import DIRECTION_BITS
from samara.shared.protocol.replay import default_backend, to_float32


class OnnxPhoneProgram(PhoneProgram):
    """A program whose method ``forward`` is `samara.devices.phone.program.AdapterScoresModule`."""

    def _load(self, file: Path) -> None:
        self._graph = OnnxGraph(file)

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
        """Apply an update; return scores and losses of perturbations. See `PhoneProgram.step`."""
        state = self.replay(state, *previous)
        layout = self.layout
        weights = np.tile(to_float32(state), (2, self.manifest.queries, 1))
        tried = max(1, len(seeds))
        if len(seeds):
            z = default_backend(1).directions(seeds, layout.size, layout.distribution)
            step = z.astype(np.float32) * np.float32(epsilon * 2.0**-DIRECTION_BITS)
            weights[0, :tried] += step
            weights[1, :tried] -= step
        with forward_pass():
            (scores,) = self._graph.run(weights.reshape(-1, layout.size), ids, positions)
        losses = cross_entropies(scores, labels).astype(np.float32)
        both: list[NDArray[Any]] = [
            each.reshape(2, self.manifest.queries, *each.shape[1:])[:, :tried]
            for each in (scores, losses)
        ]
        return both[0], both[1], state

    def replay(
        self, state: NDArray[np.int64], seeds: NDArray[np.uint64], coefficients: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return state + Σ c·z, int64 [d], for any number of coefficients with unit 2⁻⁴⁰."""
        state = state.copy()
        default_backend(1).fold(state, seeds, coefficients, self.layout.distribution)
        return state
