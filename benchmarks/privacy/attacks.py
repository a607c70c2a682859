"""Attacks of a curious server behind each stage: clipping, summing over clients, noise.

    python -m benchmarks.privacy.attacks --data DATA --model MODEL --out FOLDER \\
        [--only readout] [--seeds 0,1,2,3,4,5,6,7]

DATA is the folder of source data of `benchmarks.accuracy.data_sets`, MODEL a sentence encoder.
Clients have some sentences of SST-2 each. Their reports are made, clipped, summed and noised by the
code of a run. The server has what a stage lets it see, the directions, and the public sentences of
the test split; it knows the settings, and takes noise and clipping into account. It asks without
moving the model (η = 0), which makes its equations exact: training tells it less.

- *Recovery*: the cosine of the recovered mean gradient with that of the first client, from the
  numbers alone (`recover_gradient`) and with public sentences (`InformedServer`); beside it that of
  public sentences without any number.
- *Identification*: the first client's ten sentences among 1,000 with the same labels: AUC, and
  whether the one ranked first is its own. Chance is 50 % and 1 %.
- *Labels*: which label prevails, 8 to 2, among a client's ten sentences, by each kind of number
  that leaves it in one round, of 64 clients. Chance is 50 %.

A stage is a number of clients in the sum, 1 for a client's own report, whether they clip, whether a
single report has masks, and the ε of all rounds with the noise on that sum, as `central` counts it.
That on a single client's report is half of what `local` adds for the same ε, which compares any two
reports. With secure aggregation a server has masked reports and the sum, which is that without it.
FOLDER/attacks.jsonl has a line per condition, stage and seed; the same command continues, and
prints the tables: means, and 95 % intervals of Student's t over the seeds.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from benchmarks.accuracy.cells import listed
from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.accuracy.rows import Row, Rows
from benchmarks.privacy.curious_server import (
    InformedServer,
    Observations,
    Public,
    area_under_curve,
    cosine,
    found_first,
    noise_variance,
    recover_gradient,
    tell_classes,
)
from benchmarks.privacy.federation import (
    directions_of,
    public_norms,
    still_instruction,
    take_local_steps,
)
from benchmarks.privacy.linear_texts import Floats, Texts
from benchmarks.privacy.scalars import MEMBERS, choose_candidates, slopes
from benchmarks.privacy.stages import (
    ALL,
    CONDITIONS,
    STAGES,
    Condition,
    Stage,
    config_of,
    multiplier_of,
    seen_sum,
)
from benchmarks.privacy.texts import read_inner_texts, read_texts
from samara.shared.frames.instructions import Split
from samara.shared.frames.report import Report
from samara.shared.privacy.vector import OTHERS, gradient_noise

CANDIDATES = 1000
LEFT = 2.1
"""The sentences per candidate that no client has, so that there are enough of either label."""
INNER_TEXTS = 2800
"""Training sentences whose gradients inside the model are taken."""
TARGETS, PREVAILING, SHADOWS = 64, 8, 200
LABEL_QUERIES = 32


def fits(condition: Condition, stage: Stage, texts: int) -> bool:
    """Return whether there are enough sentences for the clients of a sum, and candidates."""
    return condition.examples * stage.clients + LEFT * CANDIDATES <= texts


@dataclass(frozen=True, eq=False)
class Seen:
    """The mean projected gradients that a stage lets the server see.

    Attributes:
        scalars: float64 [rounds · q], in the units of an average client that does not clip.
        noise: variance of the noise in each of them.
    """

    scalars: Floats
    noise: float


def look(stage: Stage, reports: Sequence[Sequence[Report]], norms: Floats) -> Seen:
    """Return what the server sees of some clients.

    It knows the median norm at which they clip, and how much that shortens the reports of clients
    with public sentences in the mean.

    Args:
        stage: stage of the pipeline.
        reports: reports of every round, of at least as many clients.
        norms: norms of the reports of clients with public sentences.
    """
    by_round = [own[: stage.clients] for own in reports]
    if not stage.clips:
        means = [np.mean([r.gradients.ravel() for r in own], axis=0) for own in by_round]
        return Seen(np.concatenate(means).astype(np.float64), 0.0)
    clip = float(np.median(norms))
    kept = float(np.mean(np.minimum(1, clip / norms)))
    rounds, unit = len(reports), kept * stage.clients
    sums = [seen_sum(stage, own, rounds, clip).gradients for own in by_round]
    noise = gradient_noise() * multiplier_of(stage, rounds) * clip / unit
    return Seen(np.concatenate(sums) / unit, noise**2)


def attack_scalars(
    condition: Condition, train: Texts, public: Texts, stages: Sequence[Stage], seed: int
) -> Iterator[tuple[Stage, Row]]:
    """Yield how well gradients and sentences of the first client are found behind each stage.

    Args:
        condition: what clients are asked.
        train: sentences of clients, and candidates.
        public: sentences that the server has.
        stages: stages to attack.
        seed: seed of the division, the directions and the candidates.
    """
    rng, d = np.random.default_rng([seed, condition.examples]), train.gradients.shape[1]
    most = max(stage.clients for stage in stages)
    members = rng.permutation(len(train.labels))[: most * condition.examples]
    clients = [train.some(own) for own in members.reshape(most, -1)]
    chosen = choose_candidates(train.labels, members, CANDIDATES, rng)
    config, numbers = config_of(condition, seed), np.zeros(d)
    asked = [still_instruction(config, number) for number in range(1, condition.rounds + 1)]
    reports = [take_local_steps(clients, instruction, numbers) for instruction in asked]
    norms = public_norms(public, condition.examples, config)
    z = np.concatenate([directions_of(own.seeds(0).ravel(), d) for own in asked])
    per_text = slopes(public, numbers)
    known, truth = Public(per_text.mean(0), np.cov(per_text.T)), clients[0].slope(numbers)
    candidates = slopes(train.some(chosen), numbers) @ z.T
    for stage in stages:
        seen = look(stage, reports, norms)
        batches = np.zeros((condition.rounds, stage.clients * condition.examples), np.bool_)
        batches[:, : stage.clients * min(condition.batch, condition.examples)] = True
        observations = Observations(
            z, seen.scalars, z @ known.mean, candidates, batches, noise=seen.noise
        )
        server = InformedServer(observations, known)
        scores = server.score_candidates()
        alone = recover_gradient(observations, noise_variance(observations, known))
        yield (
            stage,
            {
                "ratio": len(z) / d,
                "cosine": cosine(alone, truth),
                "informed": cosine(server.recover_gradient(), truth),
                "public": cosine(known.mean, truth),
                "auc": area_under_curve(scores, MEMBERS),
                "first": found_first(scores, MEMBERS),
            },
        )


NUMBERS = {
    "projected gradients": slice(None, -OTHERS),
    "loss": slice(-3, -2),
    "curvature": slice(-2, -1),
    "count": slice(-1, None),
}
"""The place of each kind of number in a vector."""
EVALUATION = ("evaluation: loss", "evaluation: confusion counts")


def skewed_clients(
    texts: Texts, prevailing: NDArray[np.int64], rng: np.random.Generator
) -> list[Texts]:
    """Return clients with ten sentences, of which eight have the label that prevails.

    Args:
        texts: sentences to draw from, each at most once for a client.
        prevailing: label of every client, int64 [n].
        rng: source of randomness.
    """
    of_label = [np.flatnonzero(texts.labels == label) for label in (0, 1)]
    return [
        texts.some(
            np.concatenate(
                [
                    rng.choice(of_label[label], PREVAILING, replace=False),
                    rng.choice(of_label[1 - label], MEMBERS - PREVAILING, replace=False),
                ]
            )
        )
        for label in prevailing.tolist()
    ]


def attack_labels(
    train: Texts, public: Texts, stages: Sequence[Stage], seed: int
) -> Iterator[tuple[Stage, str, float]]:
    """Yield for every stage and kind of number in how many clients the prevailing label is told.

    Args:
        train: sentences of clients.
        public: sentences that the server has.
        stages: stages to attack.
        seed: seed of clients, labels and directions.
    """
    rng, numbers = np.random.default_rng([seed, 1]), np.zeros(train.gradients.shape[1])
    asked = still_instruction(config_of(Condition("", 0, ALL, 1, LABEL_QUERIES), seed), 1, 1)
    prevailing = rng.integers(0, 2, TARGETS)
    targets = skewed_clients(train, prevailing, rng)
    others = [train.some(rng.choice(len(train.labels), MEMBERS)) for _ in range(4 * TARGETS)]
    shadows = skewed_clients(public, np.repeat([0, 1], SHADOWS), rng)
    usual = [public.some(rng.choice(len(public.labels), MEMBERS)) for _ in range(SHADOWS)]
    of_targets, of_others, of_shadows, of_usual = (
        take_local_steps(some, asked, numbers) for some in (targets, others, shadows, usual)
    )
    clip = float(np.median([np.linalg.norm(report.gradients) for report in of_usual]))
    for stage in stages:
        seen = []
        for report in of_targets:
            beside = [of_others[i] for i in rng.choice(len(of_others), stage.clients - 1, False)]
            seen.append(sum_of(stage, [report, *beside], clip))
        alone, mean = (
            np.array([sum_of(Stage(1, stage.clips), [report], clip) for report in some])
            for some in (of_shadows, of_usual)
        )
        told = np.array(seen) - (stage.clients - 1) * mean.mean(axis=0)
        for name, place in NUMBERS.items():
            one, other = alone[SHADOWS:, place], alone[:SHADOWS, place]
            says_one = tell_classes(told[:, place], one, other)
            yield stage, name, float(np.mean(says_one == prevailing))
        if stage == Stage():
            losses = np.array([[own.loss(numbers)] for own in targets])
            known = np.array([[own.loss(numbers)] for own in shadows])
            says_one = tell_classes(losses, known[SHADOWS:], known[:SHADOWS])
            yield stage, EVALUATION[0], float(np.mean(says_one == prevailing))
            rows = np.array([own.confusion(numbers).counts.sum(axis=1) for own in targets])
            yield stage, EVALUATION[1], float(np.mean((rows[:, 1] > rows[:, 0]) == prevailing))


def sum_of(stage: Stage, reports: Sequence[Report], clip: float) -> Floats:
    """Return g's, loss, curvature and count that a stage shows of reports, float64 [q + 3].

    The count of a report that is not clipped is its number of examples.
    """
    if stage.clips:
        total = seen_sum(stage, reports, 1, clip)
        return np.append(total.gradients, [total.loss, total.curvature, total.count])
    rows = [
        np.append(r.gradients.ravel(), [r.mean_loss, r.curvature or 0.0, r.examples])
        for r in reports
    ]
    return np.asarray(np.sum(rows, axis=0))


def interval(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> str:
    """Return mean and half the width of a 95 % interval of Student's t, as text."""
    mean = f"{scale * float(np.mean(values)):.{digits}f}"
    if len(values) < 2:
        return mean
    error = float(np.std(values, ddof=1)) / np.sqrt(len(values))
    return f"{mean} ± {scale * float(student.ppf(0.975, len(values) - 1)) * error:.{digits}f}"


def tables(rows: Iterable[Row]) -> str:
    """Return the tables of gradients and sentences, and of labels, as Markdown."""
    conditions: dict[Condition, dict[Stage, list[Row]]] = {}
    labels: dict[str, dict[Stage, dict[str, list[float]]]] = {}
    for row in rows:
        stage = Stage(**row["stage"])
        if row["attack"] == LABELS:
            of_stage = labels.setdefault(row["part"], {}).setdefault(stage, {})
            of_stage.setdefault(row["number"], []).append(row["told"])
        else:
            own = conditions.setdefault(Condition(**row["condition"]), {})
            own.setdefault(stage, []).append(row)
    lines = []
    for condition, stages in conditions.items():
        first, *_ = (row for group in stages.values() for row in group)
        alone = np.mean([row["public"] for group in stages.values() for row in group])
        batch = "all" if condition.batch == ALL else f"{condition.batch}"
        lines += [
            f"\n{condition.part}, {condition.examples} sentences, batch {batch}, "
            f"{condition.rounds} × {condition.queries} scalars, ratio {first['ratio']:.2g}; public "
            f"sentences alone {alone:.2f}\n",
            "| stage | cosine | with public sentences | AUC | own one first |",
            "|---" * 5 + "|",
        ]
        for stage, group in stages.items():
            figures = [
                interval([row[key] for row in group], scale, digits)
                for key, scale, digits in (
                    *(("cosine", 1, 2), ("informed", 1, 2)),
                    *(("auc", 100, 0), ("first", 100, 0)),
                )
            ]
            lines.append(f"| {stage.name} | " + " | ".join(figures) + " |")
    names = [*NUMBERS, *EVALUATION]
    for part, of_part in labels.items():
        lines += [f"\n| {part} | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for stage, told in of_part.items():
            cells = [interval(told[name], 100, 0) if name in told else "" for name in names]
            lines.append(f"| {stage.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


SCALARS, LABELS = "scalars", "labels"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="readout or inner")
    parser.add_argument("--seeds", type=listed, default=[str(seed) for seed in range(8)])
    given = parser.parse_args(arguments)
    settings = DATA_SETS["sst2"].prepare(given.data, given.out / "data")
    settings = {**settings, "model.path": given.model}
    rows = Rows(given.out / "attacks.jsonl")
    for part in ("readout", "inner"):
        if given.only not in part:
            continue
        file = given.out / ("sst2.npz" if part == "readout" else "sst2-inner.npz")
        texts = (
            read_texts(settings, 1, file)
            if part == "readout"
            else read_inner_texts(settings, INNER_TEXTS, file)
        )
        (train,), (public,) = texts[Split.TRAIN], texts[Split.TEST]
        for seed in map(int, given.seeds):
            measure(rows, part, train, public, seed)
    print(tables(rows))


def measure(rows: Rows, part: str, train: Texts, public: Texts, seed: int) -> None:
    """Measure all conditions of a part with a seed, but for rows that are there."""
    for condition in CONDITIONS:
        fitting = [stage for stage in STAGES if fits(condition, stage, len(train.labels))]
        key = {"attack": SCALARS, "condition": asdict(condition), "seed": seed}
        left = [stage for stage in fitting if not rows.find(**key, stage=asdict(stage))]
        if condition.part == part and left:
            for stage, row in attack_scalars(condition, train, public, left, seed):
                rows.add(key | {"stage": asdict(stage)} | row)
    key = {"attack": LABELS, "part": part, "seed": seed}
    left = [stage for stage in STAGES if not rows.find(**key, stage=asdict(stage))]
    if left:
        for stage, number, told in attack_labels(train, public, left, seed):
            rows.add(key | {"stage": asdict(stage), "number": number, "told": told})


if __name__ == "__main__":
    main()
