"""The program of a readout: the model's part, and the readout's losses in numpy."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samara.client.forward.turns import forward_pass
from samara.devices.phone.manifest import Manifest
from samara.devices.phone.reference_client.losses import cross_entropies
from samara.devices.phone.reference_client.onnx_adapters import OnnxPhoneProgram
from samara.devices.phone.reference_client.onnx_graph import OnnxGraph
from samara.devices.phone.reference_client.runtime import LoadedProgram, PhoneProgram, pad
from samara.shared.protocol.directions import DIRECTION_BITS
from samara.shared.protocol.replay import default_backend, digest, to_float32, zero_state


class ReadoutProgram(LoadedProgram):
    """The methods of a program that computes base model scores and features.

    Attributes:
        features: number of features of an example.
        contrasts: orthonormal contrasts between labels, float32 [labels − 1, labels].
    """

    has_readout = True

    def __init__(self, file: Path, manifest: Manifest | None = None) -> None:
        super().__init__(file, manifest)
        assert self.manifest.readout is not None
        self.features = self.manifest.readout.features
        self.contrasts = np.array(self.manifest.readout.contrasts, np.float32)

    def represent(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Call ``forward`` once; see `samara.devices.phone.program.RepresentationModule`.

        Args:
            ids: [B, s] with s from the manifest's `least_sequence` to S, or [B, C, s] for
                candidates.
            positions: [B].

        Returns:
            Scores of the base model [B, labels] and features [B, features].
        """
        scores, features = self.run("forward", ids, positions)
        return scores, features

    def directions(self, seeds: NDArray[np.uint64]) -> NDArray[np.int16]:
        """Return the directions of any number of seeds, int16 [n, d] with unit 2⁻¹¹."""
        z = np.empty((len(seeds), self.layout.size), np.int16)
        size = self.manifest.replay_seeds
        for start in range(0, len(seeds), size):
            some = seeds[start : start + size].view(np.int64)
            z[start : start + size] = self.run("directions", pad(some, size))[0][: len(some)]
        return z

    def replay(
        self, state: NDArray[np.int64], seeds: NDArray[np.uint64], coefficients: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return state + Σ c·z, int64 [d], for any number of coefficients with unit 2⁻⁴⁰."""
        state = state.copy()
        size = self.manifest.replay_seeds
        for start in range(0, len(seeds), size):
            some = slice(start, start + size)
            for coefficient, z in zip(
                coefficients[some], self.directions(seeds[some]), strict=True
            ):
                state += coefficient * z.astype(np.int64)
        return state

    def check(self) -> float:
        """Run the manifest's self-check; see `LoadedProgram.check`."""
        check = self.manifest.check
        state = zero_state(self.layout.size)
        seeds = np.array(check.seeds, np.uint64)
        moved = self.replay(state, seeds, np.array(check.coefficients, np.int64))
        scores, features = self._represent_check()
        weights = self.perturbed_weights(state, self.directions(seeds), check.epsilon)
        perturbed = self.perturbed_scores(weights, scores, features)
        losses = cross_entropies(perturbed, np.array(check.labels))
        return self.compare(digest(self.layout.hash, moved).hex() == check.digest, losses)

    def _represent_check(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the self-check's scores and features.

        The shortest example has a separate call, with fewer tokens than S.
        """
        ids = np.array(self.manifest.check.ids)
        positions = np.array(self.manifest.check.positions)
        scores, features = self.represent(ids, positions)
        if self.manifest.least_sequence:
            row = int(positions.argmin())
            longest = int(positions[row]) + 1 + self.manifest.answer_tokens
            length = self.manifest.call_length(longest)
            most = length - 1 - self.manifest.answer_tokens
            short = self.represent(ids[..., :length], np.minimum(positions, most))
            scores[row], features[row] = short[0][row], short[1][row]
        return scores, features

    def perturbed_weights(
        self,
        state: NDArray[np.int64],
        z: NDArray[np.int16],
        epsilon: float,
        signs: tuple[int, ...] = (1, -1),
    ) -> NDArray[np.float32]:
        """Return the perturbed weights θ + s·ε·z, float32 [signs · n, d].

        The weights are a readout W [labels − 1, features], row by row, and the label bias if there
        is one.

        Args:
            state: state, int64 [d].
            z: directions, int16 [n, d]; if there are none, the result is θ alone, [1, d].
            epsilon: size ε of the perturbations.
            signs: signs s; all directions with the first sign come first.
        """
        weights = to_float32(state)[None]
        if len(z):
            step = z.astype(np.float32) * np.float32(epsilon * 2.0**-DIRECTION_BITS)
            weights = np.concatenate([weights + np.float32(sign) * step for sign in signs])
        return weights

    def perturbed_scores(
        self,
        weights: NDArray[np.float32],
        scores: NDArray[np.float32],
        features: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Return the scores of n examples under P perturbations, float32 [P, n, labels].

        Args:
            weights: trained weights [P, d].
            scores: scores of the base model [n, labels].
            features: features of the examples [n, features].
        """
        count = len(weights)
        contrasts = len(self.contrasts)
        size = contrasts * self.features
        by_example = features @ weights[:, :size].reshape(count * contrasts, -1).T
        coordinates = by_example.reshape(len(features), count, contrasts).transpose(1, 0, 2)
        perturbed = scores + coordinates @ self.contrasts
        if weights.shape[1] > size:
            perturbed += weights[:, None, size:]
        return np.asarray(perturbed, np.float32)


class OnnxReadoutProgram(ReadoutProgram):
    """A readout's program for ONNX Runtime, which has only the method ``forward``.

    numpy draws the directions, as TypeScript does in a browser.
    """

    def _load(self, file: Path) -> None:
        self._graph = OnnxGraph(file)

    def run(self, method: str, *inputs: NDArray[Any]) -> list[NDArray[Any]]:
        """Run ``forward``; see `LoadedProgram.run`."""
        assert method == "forward", "the manifest has no other method"
        with forward_pass():
            return self._graph.run(*inputs)

    def directions(self, seeds: NDArray[np.uint64]) -> NDArray[np.int16]:
        """Return the directions of any number of seeds, int16 [n, d] with unit 2⁻¹¹."""
        return default_backend(1).directions(seeds, self.layout.size, self.layout.distribution)


def load_program(file: Path) -> PhoneProgram | ReadoutProgram:
    """Load a program of either kind, with the manifest beside it.

    Raises:
        DeviceError: if the program's runtime is missing, or the program or its manifest is
            unusable.
    """
    manifest = Manifest.read(file)
    if manifest.runtime == "onnx":
        kind = OnnxPhoneProgram if manifest.readout is None else OnnxReadoutProgram
        return kind(file, manifest)
    return (PhoneProgram if manifest.readout is None else ReadoutProgram)(file, manifest)
