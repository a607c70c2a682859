"""The audit by canaries (`benchmarks.privacy.audit`) of runs that train a readout of SST-2.

    python -m benchmarks.privacy.audit_run --data DATA --model MODEL --out FOLDER \\
        [--epsilons 8,2,0.5] [--seeds 0,1,2]

The canaries are 256 clients with sentences of their own, each in the whole run or not in it, by the
toss of a coin. Their reports, clips and frames, the noise (of the server, or of every client), the
file of releases, the step size and the model that moves are those of a run. The attacker has the
file of releases and the ledger, and knows all clients' sentences, so that it can compute what each
has said or would have said in every round. What it does not know are the coins: it fits them to all
releases by ridge regression, whose penalty is the variance of the noise over that of a coin, and
guesses for the fifth of the clients of which it is surest.

FOLDER/audit_run.jsonl has a line per run; the same command continues, and prints the table.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.cells import listed
from benchmarks.accuracy.rows import Row, Rows
from benchmarks.privacy.accuracy import make_parser, texts_of
from benchmarks.privacy.audit import NOISES, guess, lower_bound, table
from benchmarks.privacy.federation import Federation, make_config, public_norms
from benchmarks.privacy.linear_texts import Floats, Texts
from benchmarks.privacy.stages import vector_of
from benchmarks.privacy.texts import joined
from samara.server.rounds.releases import RELEASES_FILE, read_releases
from samara.shared.config import RunConfig
from samara.shared.frames.instructions import Split, TrainInstruction
from samara.shared.frames.report import Report
from samara.shared.privacy.discrete_gaussian import Noise
from samara.shared.privacy.vector import SENSITIVITY
from samara.shared.round_delta import RoundDelta
from samara.shared.step_size import Observation

CLIENTS, ROUNDS, QUERIES = 256, 10, 256
LEAST = 96
"""The fewest clients of a sum; half of all toss the right coin, fewer than these hardly ever."""
MODES = ("central", "distributed")
TRIED = ("as reported", "none")


class AuditedRun(Federation):
    """The rounds of a run in which some of the clients take part.

    Args:
        config: settings of the run.
        clients: texts of every client.
        folder: folder for the releases.
        is_present: whether a client takes part, bool [clients].
        noise: source of noise.
    """

    def __init__(
        self,
        config: RunConfig,
        clients: Sequence[Texts],
        folder: Path,
        is_present: NDArray[np.bool_],
        noise: Noise,
    ) -> None:
        super().__init__(config, clients, folder, noise)
        self._is_present = is_present
        self.said: list[NDArray[np.int32]] = []
        """What every client has said or would have said, int32 [clients, n] of every round."""

    def _aggregate(
        self, instruction: TrainInstruction, reports: Sequence[Report]
    ) -> tuple[RoundDelta, Observation | None]:
        clip = self._config.privacy.clip
        self.said.append(np.stack([vector_of(report, clip) for report in reports]))
        present = [reports[client] for client in np.flatnonzero(self._is_present).tolist()]
        return super()._aggregate(instruction, present)


def fitted_coins(said: Floats, released: Floats, noise: float) -> Floats:
    """Return how likely each client seems to have been in all sums, float64 [clients].

    Args:
        said: numbers of every client, float64 [clients, n].
        released: noised sums over those that took part, float64 [n].
        noise: standard deviation of the noise in each.
    """
    centred = said @ (released - said.sum(axis=0) / 2)
    penalty = 4 * noise**2 * np.eye(len(said))
    return np.asarray(np.linalg.solve(said @ said.T + penalty, centred))


def audit_run(
    clients: Sequence[Texts], public: Texts, mode: str, epsilon: float, seed: int, noise: Noise
) -> Row:
    """Run a federation of clients who toss coins, and return what its releases show.

    Args:
        clients: texts of every client.
        public: texts of nobody, by which the clip is chosen.
        mode: who adds noise, `central` or `distributed`.
        epsilon: ε of the run.
        seed: seed of the coins and the run.
        noise: noise of the run.
    """
    own: dict[str, Any] = {"rounds": ROUNDS, "steps": 1, "queries": QUERIES, "seed": seed}
    norms = public_norms(public, len(clients[0].labels), make_config(own))
    own |= {"privacy.mode": mode, "privacy.epsilon": epsilon}
    own |= {"cohort.minimum": LEAST, "data.clients": CLIENTS}
    if mode == "distributed":
        own["privacy.honest-share"] = 1.0
    config = make_config({**own, "privacy.clip": float(np.median(norms))})
    is_present = np.random.default_rng(seed).random(len(clients)) < 0.5
    with TemporaryDirectory() as folder:
        run = AuditedRun(config, clients, Path(folder), is_present, noise)
        run.run()
        releases = read_releases(Path(folder) / RELEASES_FILE)
    sums = [release.sums[0] for release in releases]
    scores = fitted_coins(
        np.concatenate(run.said, axis=1).astype(np.float64),
        np.concatenate([one.total for one in sums]).astype(np.float64),
        sums[0].noise_multiplier * SENSITIVITY,
    )
    guesses = guess(scores)
    right = int(np.sum(guesses == np.where(is_present, 1, -1)))
    made = int(np.count_nonzero(guesses))
    start = public.loss(np.zeros_like(run.numbers))
    return {
        "reported": run.epsilon,
        "guesses": made,
        "right": right,
        "gain": start - public.loss(run.numbers),
        "lower_bound": lower_bound(len(clients), made, right, config.privacy.delta),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--epsilons", type=listed, default=["8", "2", "0.5"])
    parser.add_argument("--seeds", type=listed, default=["0", "1", "2"])
    given = parser.parse_args(arguments)
    rows = Rows(given.out / "audit_run.jsonl")
    for seed in map(int, given.seeds):
        texts = texts_of("sst2", CLIENTS, seed, given)
        public = joined(texts[Split.VALIDATION])
        for mode, noise, epsilon in product(MODES, TRIED, map(float, given.epsilons)):
            key = {"noise": f"{mode}, {noise}", "epsilon": epsilon, "seed": seed}
            if not rows.find(**key):
                rows.add(
                    key | audit_run(texts[Split.TRAIN], public, mode, epsilon, seed, NOISES[noise])
                )
    print(table(rows))


if __name__ == "__main__":
    main()
