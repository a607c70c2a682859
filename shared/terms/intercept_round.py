"""The instruction of the round of intercepts, which follows the last round of training."""

from samara.shared.protocol.directions import round_root
from samara.shared.protocol.frames.instructions import INTERCEPT_TRACK, SeedPolicy, TrainInstruction
from samara.shared.terms.run_terms import RunTerms

INTERCEPT_LIMIT = 2.0
"""Norm to which a client's intercept is clipped under differential privacy."""
MOST_EXCESS = 1.0
"""Largest excess of a candidate's held-out loss over the client's lowest one in a report."""


def intercept_instruction(
    terms: RunTerms,
    run_id: bytes,
    layout_hash: bytes,
    start_digest: bytes,
    *,
    labels: int,
    joint_clip: float = 0.0,
) -> TrainInstruction:
    """Return the instruction with which clients report their intercepts or shifts.

    The round's projected gradients are the coordinates of a client's intercept along the
    contrasts of the labels, −H·b·q/η, followed by zeros. Under differential privacy there are as
    many numbers as in any other round, because the noise depends on their count. η is chosen so
    that an intercept of norm `INTERCEPT_LIMIT` has the norm of the clip. With a common prior, the
    excesses of the client's held-out losses follow in the same form.

    Args:
        terms: terms of the run.
        run_id: id of the run, 8 bytes.
        layout_hash: hash of the layout, 32 bytes.
        start_digest: digest of the state that the intercepts are fitted to, 32 bytes.
        labels: number of labels.
        joint_clip: adaptive clip; 0 without one.
    """
    steps = 1
    queries = labels - 1 + terms.held_out_losses
    rate = float(queries)
    if terms.privacy:
        steps, queries = terms.steps, terms.queries
        rate = queries * INTERCEPT_LIMIT / (joint_clip or terms.privacy.clip)
    return TrainInstruction(
        run_id=run_id,
        round=terms.intercept_round,
        track=INTERCEPT_TRACK,
        steps=steps,
        queries=queries,
        batch=terms.batch,
        seed_policy=SeedPolicy.SHARED,
        root=round_root(terms.seed, 0, INTERCEPT_TRACK),
        epsilon=terms.epsilon,
        learning_rate=rate,
        clip=0.0,
        deadline=terms.deadline,
        layout_hash=layout_hash,
        start_digest=start_digest,
        joint_clip=joint_clip,
    )
