"""Sentences about the terms of a run, for the owner of a client's examples."""

from samara.shared.protocol.frames.instructions import SeedPolicy
from samara.shared.terms.run_terms import MOST_RESTORES, RunTerms


def describe_round(terms: RunTerms) -> list[str]:
    """Describe a client's work in a round: its directions and examples, and its measurements."""
    directions = {
        SeedPolicy.SHARED: "the same for all clients",
        SeedPolicy.INDEPENDENT: "different for every client",
        SeedPolicy.POOL: f"from the run's pool of {terms.pool_size:,}",
    }[terms.seed_policy]
    rate = "estimated" if terms.learning_rate is None else f"{terms.learning_rate:g}"
    work = f"{terms.steps:,} steps of"
    measures = f"epsilon {terms.epsilon:g}, {terms.differences} differences, learning rate {rate}"
    if terms.differences == "components":
        rate = "from the other settings" if terms.learning_rate is None else rate
        work, measures = "components of the client's own update along", f"learning rate {rate}"
    return [
        f"a round: {work} {terms.queries:,} directions, {directions}, on {terms.batch:,} examples, "
        "or all if there are fewer",
        measures,
    ]


def describe_terms(terms: RunTerms) -> list[str]:
    """Describe a run's demands on a client, in one sentence per demand."""
    splits = "validation and test" if terms.has_test else "validation"
    gap = terms.validation_every
    every = f", and every {f'{gap:,} rounds' if gap > 1 else 'round'}" if gap else ""
    often = "" if terms.when == "end" else f" each time ({terms.when})"
    lines = [
        f"method {terms.method}: {terms.rounds_of_federation:,} rounds with others, "
        f"{terms.private_rounds:,} private ones{often}, which send nothing",
        *describe_round(terms),
        f"in all at most {terms.scalars:,} scalars about examples, whatever the server asks: "
        f"{terms.projected_gradients:,} projected gradients or components, "
        f"{terms.report_losses:,} losses and curvatures in reports, "
        f"{terms.evaluated_columns:,} losses in evaluations",
        *_describe_evaluations(terms),
        f"evaluation on {splits} examples: before the first and after the last round{every}",
    ]
    if terms.method == "readout":
        losses = terms.held_out_losses
        lines.append(
            "after the last round each client sends its private intercept (one number fewer than "
            "there are labels) "
            + (f"and {losses} held-out losses " if losses else "")
            + "for the mean over all clients"
        )
    if terms.reports_shifts:
        lines.append(
            "after the last round each client sends the shift that fits the scores to its training "
            "labels (one number fewer than there are labels), for the mean over all clients"
        )
    if terms.clusters:
        steps, batch = terms.clustering_steps_and_batch()
        lines.append(
            f"{terms.clusters} clusters, found by {steps:,} steps on {batch:,} examples, whose "
            "scalars are counted above"
        )
    return lines + (terms.privacy.describe() if terms.privacy else [])


def _describe_evaluations(terms: RunTerms) -> list[str]:
    """Describe the numbers that evaluations reveal, and repetitions after a server's restore."""
    if not terms.evaluated_columns:
        return []
    times = "once" if MOST_RESTORES == 1 else f"{MOST_RESTORES} times"
    return [
        "each loss in an evaluation comes with a table of counts by true and predicted label; "
        f"after a restore of its backup the server may repeat, at most {times}, its evaluations "
        "of the global model, and the numbers above include these"
    ]
