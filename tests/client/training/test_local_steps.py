"""Local steps: losses of one combined request equal the losses of separate requests."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from federations import Settings, loaded, state_of
from helpers import instruction_with
from numpy.typing import NDArray

from samara.client.estimators.prge import (
    Estimator,
    GradientEstimate,
    LossRequest,
    run_estimators,
)
from samara.client.training import local_steps
from samara.client.training.local_steps import take_local_steps_together
from samara.shared.errors import SamaraError
from samara.shared.protocol.directions import Differences
from samara.shared.tasks.objectives import PROFILED

Losses = Callable[[Sequence[LossRequest]], Sequence[NDArray[np.float64]]]


def in_separate_requests(
    estimators: Sequence[Estimator], losses_of: Losses
) -> list[GradientEstimate]:
    """Run estimators, and request the unperturbed losses after all others."""

    def answers(requests: Sequence[LossRequest]) -> list[NDArray[np.float64]]:
        assert all(request.unperturbed for request in requests)
        perturbed = [replace(request, unperturbed=False) for request in requests]
        unperturbed = [replace(request, seeds=request.seeds[:0]) for request in perturbed]
        both = zip(losses_of(perturbed), losses_of(unperturbed), strict=True)
        return [np.append(*losses) for losses in both]

    return run_estimators(estimators, answers)


@pytest.mark.parametrize("layers", ["top:2", "readout"])
@pytest.mark.parametrize(
    ("differences", "curvature_every", "objective"),
    [("central", 1, PROFILED), ("forward", 0, "cross-entropy")],
)
@pytest.mark.parametrize("clients", [1, 2])
def test_the_unperturbed_loss_of_a_request_is_that_of_its_own(
    settings: Settings,
    layers: str,
    differences: Differences,
    curvature_every: int,
    objective: str,
    clients: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = loaded(settings, adapter__layers=layers, micro_batch=4, objective=objective)
    runtime, state = run.runtime, state_of(run.runtime)
    instruction = instruction_with(
        layout_hash=runtime.layout.hash,
        batch=1000,
        epsilon=0.5,
        differences=differences,
        curvature_every=curvature_every,
    )
    shares = [run.data.share_of(client, 3) for client in range(clients)]

    def reports() -> list[bytes]:
        found = take_local_steps_together(runtime, shares, instruction, state)
        return [b"" if isinstance(one, SamaraError) else one.encode() for one in found]

    together = reports()
    monkeypatch.setattr(local_steps, "run_estimators", in_separate_requests)
    assert reports() == together
    assert all(together)
