"""A lower bound on the ε of a run, from one run with canaries (Steinke, Nasr, Jagielski, 2023).

    python -m benchmarks.privacy.audit --out FOLDER [--epsilons 8,2,0.5] [--seeds 0,1,2,3,4]

A canary is a client that takes part in the whole run or not at all, as a coin decides. Each canary
reports one scalar as large as the clip allows, and zeros for the scalars of other canaries. The
reports go through the code of a run: `VectorReport`, `PrivateAggregator` and its file of releases.
The attacker sees only the releases. It sums a canary's scalar over all releases. It guesses that
the tenth of the canaries with the highest sums took part, and that the tenth with the lowest sums
did not. The number of right guesses gives a lower bound on ε: in an (ε, δ)-private run, that many
guesses are right with a probability of at most 5 %. The sums contain nothing else, which is the
best case for the attacker. A bound above the reported ε would show that the noise is wrong.

Other runs report the same ε, but with a quarter of the noise's standard deviation, or without
noise. The audit must detect these runs. If every guess is right, the bound is the logarithm of a
third of the guesses, 4.9. The audit therefore cannot detect anything for a reported ε of 8.

FOLDER/audit.jsonl has a line per run. The same command continues an interrupted audit, and prints
the table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from benchmarks.accuracy.rows import Row, Rows
from benchmarks.arguments import arguments
from samara.server.rounds.private_aggregator import PrivateAggregator
from samara.server.rounds.releases import RELEASES_FILE, read_releases
from samara.server.rounds.report_validation import ValidatedReplies
from samara.server.store import RunStore
from samara.shared.privacy.discrete_gaussian import Noise, sample_noise
from samara.shared.protocol.frames.instructions import token_of
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.frames.vector_report import VectorReport, hide_report
from samara.shared.protocol.replay import check_fits, zero_state
from samara.shared.protocol.round_delta import RoundDelta
from samara.shared.settings.config import RunConfig

ROUNDS, QUERIES, CANARIES = 10, 256, 2048
GUESSED = 0.2
"""Share of the canaries about which the attacker guesses: half as present, half as absent."""
CONFIDENCE = 0.95
NOISES: dict[str, Noise] = {
    "as reported": sample_noise,
    "a quarter": lambda count, sigma: sample_noise(count, max(1, sigma // 4)),
    "none": lambda count, sigma: np.zeros(count, object),
}
"""Name of a run's noise level."""


@dataclass(frozen=True)
class _Ledger:
    """A state of one number, in place of a ledger on disk."""

    state: NDArray[np.int64] = field(default_factory=lambda: zero_state(1))

    def check(self, delta: RoundDelta) -> None:
        """Raise an error if a delta does not fit the state."""
        check_fits(self.state, [group.scalars for group in delta.groups])


@dataclass(frozen=True)
class _Store:
    """Substitute for the parts of a run's store that a private aggregator uses."""

    folder: Path
    ledger: _Ledger = field(default_factory=_Ledger)


def chance_of_guesses(
    canaries: int, guesses: int, right: int, epsilon: float, delta: float
) -> float:
    """Return the largest probability of at least `right` right guesses in an (ε, δ)-private run.

    Steinke, Nasr, Jagielski (2023), Theorem 5.2: with δ = 0, a binomial of the probability e^ε/(1 +
    e^ε) dominates the number of right guesses. With δ > 0, the probability grows by at most
    2·m·δ·max pᵢ/i, where pᵢ is the binomial's probability of the i values below `right`.

    Args:
        canaries: number of canaries, m.
        guesses: number of canaries that were guessed.
        right: number of right guesses.
        epsilon: ε.
        delta: δ.
    """
    if right <= 0:
        return 1.0
    chance = 1 / (1 + np.exp(-epsilon))
    below = binom.cdf(right - 1, guesses, chance) - binom.cdf(
        right - 1 - np.arange(1, right + 1), guesses, chance
    )
    most = float(np.max(below / np.arange(1, right + 1)))
    tail = float(binom.sf(right - 1, guesses, chance))
    return min(1.0, tail + 2 * canaries * delta * most)


def lower_bound(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Return the largest ε that the guesses rule out with some confidence; 0 if there is none.

    Args:
        canaries, guesses, right, delta: as in `chance_of_guesses`.
        confidence: probability that the ε of the run is above the result.
    """
    low, high = 0.0, 64.0
    if chance_of_guesses(canaries, guesses, right, low, delta) > 1 - confidence:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        if chance_of_guesses(canaries, guesses, right, middle, delta) > 1 - confidence:
            high = middle
        else:
            low = middle
    return low


def guess(scores: NDArray[np.float64], share: float = GUESSED) -> NDArray[np.int8]:
    """Return 1 for the highest scores, −1 for the lowest, and 0 (no guess) for the others."""
    each = int(len(scores) * share / 2)
    order = np.argsort(scores, kind="stable")
    guesses = np.zeros(len(scores), np.int8)
    guesses[order[len(scores) - each :]], guesses[order[:each]] = 1, -1
    return guesses


def audit(
    epsilon: float, seed: int, noise: Noise, canaries: int = CANARIES, rounds: int = ROUNDS
) -> Row:
    """Run a federation of canaries, attack its releases, and return the row of results.

    Args:
        epsilon: ε of the run.
        seed: seed that decides which canaries take part.
        noise: noise level of the run.
        canaries: number of canaries, a multiple of `QUERIES`; each canary has one scalar.
        rounds: number of rounds.
    """
    settings: dict[str, Any] = {"method": "global", "seed-policy": "shared", "seed": seed}
    settings |= {"privacy.mode": "central", "privacy.epsilon": epsilon, "aggregation.rule": "mean"}
    settings |= {"adapter.layers": "readout", "evaluate.best": False, "personal.rounds": 0}
    settings |= {"rounds": rounds, "steps": canaries // QUERIES, "queries": QUERIES}
    config = RunConfig.of(settings, "benchmark")
    clip = config.privacy.clip
    is_present = np.random.default_rng(seed).random(canaries) < 0.5
    with TemporaryDirectory() as folder:
        store = cast(RunStore, _Store(Path(folder)))
        aggregator = PrivateAggregator(config, store, noise=noise)
        for number in range(1, rounds + 1):
            own = (bytes(8), number, bytes(32), bytes(32))
            instruction = config.terms.instruction(
                *own, learning_rate=0.0, clip=0.0, curvature_every=0
            )
            reports = {}
            for canary in np.flatnonzero(is_present).tolist():
                gradients = np.zeros((instruction.steps, QUERIES), np.float32)
                gradients.ravel()[canary] = 2 * clip
                report = Report(token_of(instruction.encode()), canary, 1, 0.0, gradients)
                frame = hide_report(report, clip, 0).encode()
                reports[canary] = VectorReport.decode(frame)
            replies = ValidatedReplies[VectorReport](answers=reports)
            aggregator.check_budget(instruction)
            aggregator.aggregate(instruction, replies, 1, canaries)
        releases = read_releases(Path(folder) / RELEASES_FILE)
    totals = np.array([release.sums[0].total[:canaries] for release in releases], np.float64)
    scores = totals.sum(axis=0)
    guesses = guess(scores)
    right = int(np.sum(guesses == np.where(is_present, 1, -1)))
    made = int(np.count_nonzero(guesses))
    return {
        "reported": aggregator.epsilon,
        "guesses": made,
        "right": right,
        "lower_bound": lower_bound(canaries, made, right, config.privacy.delta),
    }


def table(rows: Iterable[Row]) -> str:
    """Return a Markdown table of the bounds of all seeds, by ε and noise."""
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["noise"], row["epsilon"]), []).append(row)
    lines = [
        "| noise | reported ε | runs | right guesses | lower bounds of ε, 95 % | above ε |",
        "|---" * 6 + "|",
    ]
    for (noise, epsilon), group in groups.items():
        right = np.mean([row["right"] / row["guesses"] for row in group])
        bounds = sorted(row["lower_bound"] for row in group)
        above = sum(row["lower_bound"] > row["reported"] for row in group)
        lines.append(
            f"| {noise} | {epsilon:g} | {len(group)} | {right:.1%} | "
            f"{bounds[0]:.2f} to {bounds[-1]:.2f} | {above} of {len(group)} |"
        )
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> None:
    given = arguments(__doc__, words, out=Path, epsilons=[8.0, 2.0, 0.5], seeds=[0, 1, 2, 3, 4])
    rows = Rows(given.out / "audit.jsonl")
    for noise, source in NOISES.items():
        for epsilon in given.epsilons:
            for seed in given.seeds:
                key = {"noise": noise, "epsilon": epsilon, "seed": seed}
                if not rows.find(**key):
                    rows.add(key | audit(epsilon, seed, source))
    print(table(rows))


if __name__ == "__main__":
    main()
