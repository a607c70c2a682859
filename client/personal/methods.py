"""The methods: how the global model and a client's private rounds make the personal model.

Every method spends the same number of rounds on a client (`RunTerms.rounds` and
`private_rounds`) and moves two integer states, w of the federation and p of the client:

- finetune: w + p; p is trained starting from w.
- ditto: w + p; p is pulled back after every private round, p ← p − p/2ᵏ. This is SGD on the
  client's loss plus λ/2·|p|² with 2⁻ᵏ = η·λ·K (Li et al., Ditto, 2021, equation 2). The global
  model is trained first, as their section 3.1 allows.
- mixture: α·w + (1 − α)·(w + p); α is chosen on the client's validation examples (Deng et al.,
  APFL, 2020, equation 2). Weights are interpolated as by Wortsman et al., WiSE-FT, 2022.
- partial: some tensors belong to w, the others to p (Pillutla et al., 2022; Arivazhagan et al.,
  FedPer, 2019). Each state is trained and used only in the tensors that belong to it.
- readout: w + p; p is fitted by a solver (client/personal/private_fit.py). It consists of an
  intercept per label, and of a readout if w is a readout. While w is trained, every client adds a
  private intercept.
- local: p alone.
- global: w alone.
- cluster: w alone; w is the model of the client's cluster.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import ConfigError
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.replay import MAX_SHRINK, Shrink
from samara.shared.terms.run_terms import RunTerms

State = NDArray[np.int64]

_HALVINGS = (Shrink(1),)
ERASURE = _HALVINGS * MAX_SHRINK
"""Shrinks that set a state to zero, except for its last bit."""
KEPT_SHARES: dict[float, tuple[Shrink, ...]] = {
    0.0: ERASURE,
    0.125: _HALVINGS * 3,
    0.25: _HALVINGS * 2,
    0.5: _HALVINGS,
    0.75: (Shrink(2),),
    0.875: (Shrink(3),),
    1.0: (),
}
"""Shares 1 − α of p that a mixture may keep, in ascending order. The value of each share is the
sequence of shrinks that keeps it.
"""
DEFAULT_SHARE = 0.5
"""Share of p that is kept if a client has no validation examples."""


@dataclass(frozen=True, eq=False)
class Composition:
    """The division of the trained numbers between the federation and a client's private rounds.

    Attributes:
        private: bool [d], true for numbers that only private rounds change; None if the states of
            the federation and of the client are added.
    """

    private: NDArray[np.bool_] | None = None

    @property
    def shared(self) -> NDArray[np.bool_] | None:
        """Mask of the numbers that the federation changes, bool [d]; None for all numbers."""
        return None if self.private is None else ~self.private

    def model(self, w: State, p: State | None = None) -> State:
        """Return the state of the client's model, int64 [d].

        Args:
            w: state of the federation, int64 [d].
            p: private state, int64 [d]; None for a client without a private state.
        """
        if self.private is None:
            return w if p is None else w + p
        return np.where(self.private, np.int64(0) if p is None else p, w)


def composition(terms: RunTerms, layout: Layout) -> Composition:
    """Return the division of the trained numbers under a run's method.

    Raises:
        ConfigError: if the private part of ``partial`` names no tensor of the layout, or all of
            them.
    """
    if terms.method != "partial":
        return Composition()
    names = [name.strip() for name in terms.part.split(",")]
    private = np.zeros(layout.size, np.bool_)
    for name in names:
        matches = [
            part for part in layout.parts if part.group == name or fnmatchcase(part.name, name)
        ]
        if not matches:
            choices = ", ".join([p.name for p in layout.parts] + [p.group for p in layout.parts])
            raise ConfigError(
                f"personal.part: {name!r} is not a name of a tensor or group; use some of {choices}"
            )
        for part in matches:
            private[part.numbers] = True
    if private.all():
        raise ConfigError(
            "personal.part: all tensors are private, so the federation would train nothing; name "
            "fewer tensors, or set "
            'method = "local"'
        )
    return Composition(private)


def pull_shrinks(terms: RunTerms) -> tuple[Shrink, ...]:
    """Return the shrinks at the end of a private round: ditto's pull 2⁻ᵏ, or no shrinks."""
    if terms.method != "ditto":
        return ()
    return (Shrink(min(MAX_SHRINK, max(1, round(-math.log2(terms.pull))))),)


def choose_kept_share(loss_of: Callable[[float], float]) -> float:
    """Return the share 1 − α with the lowest validation loss.

    Among shares with equal losses, the smallest share is returned.

    Args:
        loss_of: function that returns the mean loss of the model with a share of p; NaN without
            examples.
    """
    losses = {share: loss_of(share) for share in KEPT_SHARES}
    if any(math.isnan(loss) for loss in losses.values()):
        return DEFAULT_SHARE
    return min(losses, key=lambda share: losses[share])
