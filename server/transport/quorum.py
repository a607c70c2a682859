"""The decision which layout, base model and number of clients a run has.

One client decides nothing: several must introduce themselves alike (a quorum), or continue what the
run's folder holds. What the operator's settings exclude is refused before anything is allocated.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from samara.shared.config import RunConfig
from samara.shared.errors import LayoutError, ModelError
from samara.shared.layout import Layout
from samara.shared.sections import MOST_ELEMENTS


@dataclass(frozen=True)
class RunIdentity:
    """A run as a hello describes it: the values that all clients of the run must agree on.

    Attributes:
        layout: layout of the adapter.
        model_id: id of the base model, 32 bytes.
        client_count: number of clients that the data set is divided among; 0 if every client has
            its own data.
    """

    layout: Layout
    model_id: bytes
    client_count: int


class Quorum:
    """The rule by which hellos decide what a run is.

    Args:
        config: settings of the run.
        is_stored: returns whether the run's folder holds a run of this identity.

    Attributes:
        is_late: whether no more clients are waited for, so that two equal hellos suffice unless
            `cohort.quorum` is set.
    """

    def __init__(
        self, config: RunConfig, is_stored: Callable[[RunIdentity], bool] = lambda identity: False
    ) -> None:
        self._config, self._is_stored = config, is_stored
        self.is_late = False

    @property
    def size(self) -> int:
        """The number of equal hellos that decide."""
        cohort = self._config.cohort
        if cohort.quorum:
            return cohort.quorum
        wanted = min(cohort.available, self._config.data.clients)
        return min(2, wanted) if self.is_late else wanted // 2 + 1

    def check(self, identity: RunIdentity) -> None:
        """Raise an error if the settings exclude the run that a hello describes.

        Raises:
            SamaraError: with the reason and the setting.
        """
        cohort, layout = self._config.cohort, identity.layout
        if layout.element_count > MOST_ELEMENTS:
            raise LayoutError(
                f"its layout has {layout.element_count} trained numbers, over {MOST_ELEMENTS}; "
                "adapt fewer layers (adapter.layers), or lower adapter.rank"
            )
        for setting, expected, value, kind in (
            ("layout-hash", cohort.layout_hash, layout.hash, LayoutError),
            ("model-id", cohort.model_id, identity.model_id, ModelError),
        ):
            if expected and value.hex() != expected:
                raise kind(
                    f"its {setting.replace('-', ' ')} {value.hex()[:12]} is not that of "
                    f"cohort.{setting}, {expected[:12]}; give it the same model and adapter "
                    "settings"
                )
        if identity.client_count:
            self._config.among(identity.client_count)  # raises an error if there are too many

    def decide(self, identities: Collection[RunIdentity]) -> RunIdentity | None:
        """Return the run that the hellos describe; None while that is not decided.

        Args:
            identities: run of each client that has introduced itself, in order of their indices.
        """
        if not identities:
            return None
        for identity in dict.fromkeys(identities):
            if self._is_stored(identity):
                return identity
        [(identity, count)] = Counter(identities).most_common(1)
        return identity if count >= self.size and 2 * count > len(identities) else None
