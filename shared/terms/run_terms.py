"""The terms of a run: its demands on a client, derived from the settings.

A server derives its instructions from the terms. A client that has the settings from the operator
checks the server's requests against the terms (`samara.client.protocol.signed_runs`). Both sides
read the same flat settings.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

from samara.shared.errors import ConfigError, ScenarioError
from samara.shared.extensions import is_extension
from samara.shared.privacy.vector import OTHERS
from samara.shared.protocol.directions import Differences, orthogonal_root, round_root
from samara.shared.protocol.frames.instructions import (
    CLUSTERING_TRACK,
    GLOBAL_TRACK,
    SeedPolicy,
    Split,
    TrainInstruction,
)
from samara.shared.protocol.round_delta import INTERCEPT_DEVIATIONS
from samara.shared.protocol.run_id import cluster_id
from samara.shared.tasks.profiled_loss import PROFILED
from samara.shared.terms.columns import (
    BASE_RATE,
    GLOBAL,
    IN_CONTEXT,
    INTERCEPT,
    LABEL_BIAS,
    LOCAL,
    OWN_WORDS,
    PERSONALIZED,
    ZERO_SHOT,
)
from samara.shared.terms.privacy import PrivacyTerms
from samara.shared.terms.values import (
    read_flag,
    read_number,
    read_rate,
    read_text,
    read_whole,
)

LEAST_STEPS, LEAST_DIRECTIONS = 8, 64
"""Least number of steps of the clustering instruction, and least number of its directions."""
MOST_RESTORES = 1
"""Largest number of restores of a run from a backup after which a client repeats evaluations."""


def federated_rounds(method: str, rounds: int, private_rounds: int) -> int:
    """Return the number of rounds that a client trains with others.

    Args:
        method: method of the run.
        rounds: ``rounds`` of the settings.
        private_rounds: ``personal.rounds`` of the settings.
    """
    if method == "local":
        return 0
    everything = method in ("global", "cluster") or fits_private_part(method)
    return rounds + private_rounds if everything else rounds


def reporting_rounds(settings: Mapping[str, Any]) -> int:
    """Return the number of rounds in which a client reports, including the intercept round.

    Args:
        settings: settings of the run by dotted key.
    """
    method = read_text(settings, "method")
    rounds, private = read_whole(settings, "rounds"), read_whole(settings, "personal.rounds")
    has_intercepts = method == "readout" or leaves_a_shift(settings)
    return federated_rounds(method, rounds, private) + has_intercepts


def fits_private_part(method: str) -> bool:
    """Return whether a method makes the private part by a fit, and not in private rounds."""
    return method == "readout" or is_extension(method)


def leaves_a_shift(settings: Mapping[str, Any]) -> bool:
    """Return whether a run's profiled loss leaves the label bias to the round of intercepts.

    Args:
        settings: settings of the run by dotted key.
    """
    is_profiled = read_text(settings, "objective") == PROFILED
    has_bias = is_profiled and read_flag(settings, "adapter.label-bias")
    return has_bias and not fits_private_part(read_text(settings, "method"))


@dataclass(frozen=True)
class RunTerms:
    """The demands of a run on a client.

    Attributes:
        method: method that makes a model for each client.
        seed: seed of the run.
        rounds: number of rounds that a client trains with others.
        private_rounds: number of rounds that a client trains alone, at each occasion in `when`.
        when: occasions for private rounds (`personal.when`).
        retrains: whether private rounds discard earlier private rounds (`personal.retrain`).
        private_learning_rate: η of private rounds; None if it is estimated.
        pull: share of the private state that ``ditto`` removes after each private round.
        part: trained tensors that are private to a client with the method ``partial``.
        steps: local steps of a round, K.
        queries: directions per step, q.
        batch: examples per step, B.
        epsilon: ε.
        differences: central or forward differences, or components of clients' own updates.
        objective: loss of the steps.
        learning_rate: η; None if it is estimated during the run or, with components, computed from
            the numbers of rounds, directions and trained numbers.
        clip: limit of projected gradients. 0 means no limit, or an estimated one if `learning_rate`
            is None.
        seed_policy: whether clients share directions, use independent ones, or draw them from a
            pool.
        pool_size: seeds in the pool.
        deadline: seconds that the server waits for a report.
        clusters: number of clusters; 0 without clusters.
        clustering_rounds: number of rounds that the search for clusters replaces.
        validation_every: rounds between validations; 0 for none.
        has_test: whether test examples are evaluated.
        returns_to_best: whether a further round after the last may revert to the best round.
        privacy: terms of differential privacy; None without it.
        retrieves: whether the base model is also evaluated with a client's examples in context.
        has_own_words: whether a client's own words are mixed into its personal model.
        has_common_prior: whether clients choose the deviation of their private intercepts together.
        reports_shifts: whether, in the round of intercepts, clients without private intercepts
            report the shift that their profiled losses leave out.
    """

    method: str
    seed: int
    rounds: int
    private_rounds: int
    when: str
    retrains: bool
    private_learning_rate: float | None
    pull: float
    part: str
    steps: int
    queries: int
    batch: int
    epsilon: float
    differences: Differences
    objective: str
    learning_rate: float | None
    clip: float
    seed_policy: SeedPolicy
    pool_size: int
    deadline: float
    clusters: int
    clustering_rounds: int
    validation_every: int
    has_test: bool
    returns_to_best: bool
    privacy: PrivacyTerms | None = None
    retrieves: bool = False
    has_own_words: bool = False
    has_common_prior: bool = False
    reports_shifts: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Read the terms from a run's settings by dotted key; automatic values must be resolved.

        Raises:
            ScenarioError: if a setting is missing, of another type or out of range.
        """
        method = read_text(settings, "method")
        rounds = read_whole(settings, "rounds")
        private = read_whole(settings, "personal.rounds")
        federated = federated_rounds(method, rounds, private)
        has_clusters = method == "cluster"
        steps, queries = read_whole(settings, "steps"), read_whole(settings, "queries")
        return cls(
            method=method,
            seed=read_whole(settings, "seed"),
            rounds=federated,
            private_rounds=rounds + private - federated,
            when=read_text(settings, "personal.when"),
            retrains=read_flag(settings, "personal.retrain"),
            private_learning_rate=read_rate(settings, "personal.learning-rate"),
            pull=read_number(settings, "personal.pull"),
            part=read_text(settings, "personal.part"),
            steps=steps,
            queries=queries,
            batch=read_whole(settings, "batch"),
            epsilon=read_number(settings, "epsilon"),
            differences=cast(Differences, read_text(settings, "differences")),
            objective=read_text(settings, "objective"),
            learning_rate=read_rate(settings, "learning-rate"),
            clip=read_number(settings, "clip"),
            seed_policy=SeedPolicy[read_text(settings, "seed-policy").upper()],
            pool_size=read_whole(settings, "pool-size"),
            deadline=read_number(settings, "cohort.timeout"),
            clusters=read_whole(settings, "cohort.clusters") if has_clusters else 0,
            clustering_rounds=(
                read_whole(settings, "cohort.clustering-rounds", federated) if has_clusters else 0
            ),
            validation_every=read_whole(settings, "evaluate.every"),
            has_test=read_flag(settings, "evaluate.test"),
            returns_to_best=(
                settings.get("evaluate.best") == "loss" or read_flag(settings, "evaluate.best")
            ),
            privacy=PrivacyTerms.of(settings, reporting_rounds(settings), steps * queries),
            retrieves=read_whole(settings, "evaluate.retrieved") != 0,
            has_own_words=read_flag(settings, "personal.own-words"),
            has_common_prior=(
                method == "readout" and read_text(settings, "personal.prior") == "common"
            ),
            reports_shifts=leaves_a_shift(settings),
        )

    @property
    def is_profiled(self) -> bool:
        """Return whether the steps minimize the profiled cross-entropy."""
        return self.objective == PROFILED

    @property
    def rounds_of_federation(self) -> int:
        """The number of rounds in the global model's ledger, or in each cluster's."""
        return self.rounds - self.clustering_rounds

    @classmethod
    def decode(cls, identity: bytes, owners: Mapping[str, Any] | None = None) -> Self:
        """Read the terms from the settings that are part of a run id, a JSON object; see `of`.

        Args:
            identity: the settings.
            owners: settings that the device's owner overrides, by dotted key.
        """
        try:
            settings = json.loads(identity)
        except (ValueError, RecursionError):
            settings = None
        if not isinstance(settings, dict):
            raise ScenarioError("the run's settings are not a JSON object")
        return cls.of(settings | dict(owners or {}))

    @property
    def interval(self) -> int:
        """The number of rounds between private rounds; 0 if they are taken only at the end."""
        if self.when == "always":
            return 1
        return int(self.when.split()[1]) if self.when.startswith("every") else 0

    @property
    def follows_data(self) -> bool:
        """Return whether a change of the training examples starts private rounds."""
        return self.when in ("on-data", "always")

    @property
    def makes_personal_models(self) -> bool:
        """Return whether every client makes and evaluates a private part after the last round."""
        return self.private_rounds > 0 or fits_private_part(self.method)

    def federations(self, run_id: bytes) -> set[bytes]:
        """Return the ids that instructions may have: the run's id, or its clusters' ids."""
        if not self.clusters:
            return {run_id}
        return {cluster_id(run_id, cluster) for cluster in range(self.clusters)}

    def check_run(self, named: bytes, asked: bytes, track: int) -> None:
        """Check that an instruction belongs to the run that its settings describe.

        Args:
            named: run id computed from the settings, 8 bytes.
            asked: id in the instruction, 8 bytes.
            track: track in the instruction.

        Raises:
            ConfigError: if the instruction belongs to another run, or to no cluster of this run.
        """
        if self.clusters and track == CLUSTERING_TRACK:
            is_of_run = asked == named
        else:
            is_of_run = asked in self.federations(named)
        if not is_of_run:
            raise ConfigError(
                f"the settings that came with the instruction belong to run {named.hex()}, and not "
                f"to run {asked.hex()} of the instruction; update the older of server, gateway and "
                "client"
            )

    def instruction(
        self,
        run_id: bytes,
        number: int,
        layout_hash: bytes,
        start_digest: bytes,
        *,
        learning_rate: float,
        clip: float,
        curvature_every: int,
        joint_clip: float = 0.0,
    ) -> TrainInstruction:
        """Return the instruction of a round.

        Args:
            run_id: id of the run or of the cluster, 8 bytes.
            number: number of the round, counted from 1.
            layout_hash: hash of the layout, 32 bytes.
            start_digest: digest of the state that the round starts from, 32 bytes.
            learning_rate: η of the round.
            clip: estimated limit of projected gradients; a limit in the settings overrides it.
            curvature_every: steps between measurements of curvature; 0 for none.
            joint_clip: adaptive clip of all projected gradients together; 0 without an adaptive
                clip.
        """
        has_pool = self.seed_policy is SeedPolicy.POOL
        root = round_root(self.seed, number, GLOBAL_TRACK)
        if self.differences == "components":
            root = orthogonal_root(self.seed, number, self.queries, GLOBAL_TRACK)
        return TrainInstruction(
            run_id=run_id,
            round=number,
            track=GLOBAL_TRACK,
            steps=self.steps,
            queries=self.queries,
            batch=self.batch,
            seed_policy=self.seed_policy,
            root=root,
            epsilon=self.epsilon,
            learning_rate=learning_rate,
            clip=self.clip or clip,
            deadline=self.deadline,
            layout_hash=layout_hash,
            start_digest=start_digest,
            pool_root=round_root(self.seed, 0, GLOBAL_TRACK) if has_pool else 0,
            pool_size=self.pool_size if has_pool else 0,
            curvature_every=curvature_every,
            differences=self.differences,
            joint_clip=joint_clip,
            is_profiled=self.is_profiled,
        )

    def clustering_steps_and_batch(self) -> tuple[int, int]:
        """Return the steps and the batch size of the clustering instruction.

        The instruction needs about as many losses as `clustering_rounds` ordinary rounds. A
        projected gradient contains mostly the noise of its batch, so the instruction has large
        batches instead of more directions. It uses forward differences, which need half as many
        losses as central ones.
        """
        queries = self.queries
        losses_per_step = queries + 1 if self.differences == "forward" else 2 * queries
        losses = self.clustering_rounds * self.steps * self.batch * losses_per_step
        steps = max(LEAST_STEPS, -(-LEAST_DIRECTIONS // queries))
        steps = min(steps, losses // (queries + 1))
        return steps, losses // (steps * (queries + 1))

    def clustering_instruction(
        self, run_id: bytes, layout_hash: bytes, start: bytes
    ) -> TrainInstruction:
        """Return the instruction for the projected gradients by which clients are clustered.

        Args:
            run_id: id of the run, 8 bytes.
            layout_hash: hash of the adapter's layout, 32 bytes.
            start: digest of the base model's state, 32 bytes.
        """
        steps, batch = self.clustering_steps_and_batch()
        return TrainInstruction(
            run_id=run_id,
            round=1,
            track=CLUSTERING_TRACK,
            steps=steps,
            queries=self.queries,
            batch=batch,
            seed_policy=SeedPolicy.SHARED,
            root=round_root(self.seed, 0, CLUSTERING_TRACK),
            epsilon=self.epsilon,
            learning_rate=0.0,
            clip=self.clip,
            deadline=self.deadline,
            layout_hash=layout_hash,
            start_digest=start,
            differences="forward",
            is_profiled=self.is_profiled,
        )

    @property
    def intercept_round(self) -> int:
        """The number of the final round, which adds the common intercept; 0 without such a round.

        It follows the round that may return to the best round, if the run has such a round.
        """
        if self.method != "readout" and not self.reports_shifts:
            return 0
        return self.rounds_of_federation + self.returns_to_best + 1

    def is_last(self, number: int) -> bool:
        """Return whether the global model no longer changes after a round.

        If a further round may return to the best round, only that further round is the last.
        """
        last = self.rounds_of_federation
        return number == (self.intercept_round or last + bool(last and self.returns_to_best))

    def is_evaluated(self, number: int, split: Split, personal: bool = False) -> bool:
        """Return whether clients evaluate the state after a round on a split.

        Args:
            number: number of the round; 0 is the state that the run begins with.
            split: part of a client's examples.
            personal: whether personal models are compared; otherwise the global model is evaluated.
        """
        last = self.rounds_of_federation
        is_end = number == last or (self.returns_to_best and 0 < last == number - 1)
        is_end |= 0 < number == self.intercept_round
        if split is Split.TRAIN or (split is Split.TEST and not self.has_test):
            return False
        if personal:
            return is_end and self.makes_personal_models
        is_due = bool(self.validation_every) and number % self.validation_every == 0
        is_validation = split is Split.VALIDATION and is_due and number <= last
        return number == 0 or is_end or is_validation

    def requested_columns(self, split: Split, personal: bool) -> tuple[str, ...]:
        """Return the columns that an evaluation requests; a client may lack some of the models.

        Args:
            split: split that is evaluated on.
            personal: whether personal models are compared; otherwise the global model is evaluated.
        """
        if personal and split is Split.TEST:
            local = (LOCAL,) if self.method == "finetune" else ()
            intercept = (INTERCEPT,) if self.method == "readout" else ()
            in_context = (IN_CONTEXT,) if self.retrieves else ()
            untrained = (BASE_RATE, ZERO_SHOT, LABEL_BIAS, *in_context)
            own_words = (OWN_WORDS,) if self.has_own_words else ()
            return (*untrained, *local, GLOBAL, *intercept, PERSONALIZED, *own_words)
        if personal:
            return (PERSONALIZED,)
        chooses_by_fits = self.method == "readout" and self.returns_to_best
        is_choice = chooses_by_fits and split is Split.VALIDATION
        return (GLOBAL, PERSONALIZED) if is_choice else (GLOBAL,)

    @property
    def projected_gradients(self) -> int:
        """The largest number of projected gradients, or components, that a client sends.

        The round of intercepts counts only under differential privacy, because a client then sends
        as many numbers as in every other round.
        """
        per_round = self.steps * self.queries
        if self.seed_policy is SeedPolicy.POOL:
            per_round = min(per_round, self.pool_size)
        clustering = self.clustering_steps_and_batch()[0] * self.queries if self.clusters else 0
        hidden = bool(self.privacy and self.intercept_round) * self.steps * self.queries
        return self.rounds_of_federation * per_round + clustering + hidden

    @property
    def report_losses(self) -> int:
        """The largest number of losses and curvatures that a client sends in its reports."""
        rounds = self.rounds_of_federation
        others = bool(self.clusters) + bool(self.intercept_round)
        if self.privacy:
            return (rounds + others) * (OTHERS + self.privacy.is_adaptive)
        return rounds * (1 + (self.learning_rate is None)) + others + self.held_out_losses

    @property
    def held_out_losses(self) -> int:
        """The number of held-out losses in a client's report for the round of intercepts."""
        return len(INTERCEPT_DEVIATIONS) * self.has_common_prior

    @property
    def evaluated_columns(self) -> int:
        """The largest number of columns in a client's evaluations; each column has one loss.

        The global model is evaluated after each round selected by `is_evaluated`, and again after
        each of `MOST_RESTORES` restores. Personal models are compared once.
        """
        if self.privacy:
            return 0
        columns = 0
        for split in (Split.VALIDATION, Split.TEST):
            often = (1 + MOST_RESTORES) * self._count_evaluations(split)
            columns += often * len(self.requested_columns(split, personal=False))
            if self.makes_personal_models and (self.has_test or split is not Split.TEST):
                columns += len(self.requested_columns(split, personal=True))
        return columns

    @property
    def scalars(self) -> int:
        """The largest number of scalars about its examples that a client sends in the run.

        Scalars are projected gradients, losses and curvatures in reports, and losses in
        evaluations. Confusion counts are not scalars. A private intercept or a shift, labels − 1
        numbers, is not counted either.
        """
        return self.projected_gradients + self.report_losses + self.evaluated_columns

    def _count_evaluations(self, split: Split) -> int:
        """Return the number of rounds after which the global model is evaluated on a split."""
        last, gap = self.rounds_of_federation, self.validation_every
        due = (last - 1) // gap if split is Split.VALIDATION and gap and last else 0
        # the rounds after the last training round: the return to the best round, the intercepts
        others = {0, last, last + 1, last + 2}
        return due + sum(self.is_evaluated(number, split) for number in others)
