"""The quorum, which decides a run's layout, base model and number of clients.

A single client cannot decide these values. Several clients must send equal hellos (a quorum), or a
hello must match the run that is already in the folder. A hello that contradicts the operator's
settings is refused before the server allocates memory for its layout.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from samara.shared.errors import LayoutError, ModelError
from samara.shared.protocol.layout import Layout
from samara.shared.settings.config import RunConfig
from samara.shared.settings.sections import MOST_ELEMENTS


@dataclass(frozen=True)
class RunIdentity:
    """The values in a hello that must be equal for all clients of a run.

    Attributes:
        layout: layout of the adapter.
        model_id: id of the base model, 32 bytes.
        client_count: number of clients that share the data set; 0 if clients bring their own data.
    """

    layout: Layout
    model_id: bytes
    client_count: int


class Quorum:
    """The rule by which hellos decide a run's identity.

    Args:
        config: settings of the run.
        is_stored: function that returns whether the run's folder holds a run with this identity.

    Attributes:
        is_late: whether the run stops waiting for more clients. Two equal hellos then suffice,
            unless `cohort.quorum` is set.
    """

    def __init__(
        self, config: RunConfig, is_stored: Callable[[RunIdentity], bool] = lambda identity: False
    ) -> None:
        self._config, self._is_stored = config, is_stored
        self.is_late = False

    @property
    def size(self) -> int:
        """The number of equal hellos that decide the run's identity."""
        cohort = self._config.cohort
        if cohort.quorum:
            return cohort.quorum
        wanted = min(cohort.available, self._config.data.clients)
        return min(2, wanted) if self.is_late else wanted // 2 + 1

    def check(self, identity: RunIdentity) -> None:
        """Check that the settings allow the run that a hello describes.

        Raises:
            SamaraError: if the settings do not allow the run; the message names reason and setting.
        """
        cohort = self._config.cohort
        layout = identity.layout
        if layout.element_count > MOST_ELEMENTS:
            raise LayoutError(
                f"its layout has {layout.element_count} trained numbers, more than "
                f"{MOST_ELEMENTS}; adapt fewer layers (adapter.layers), or lower adapter.rank"
            )
        if (bias := self._config.adapter.label_bias) != (layout.label_bias is not None):
            raise LayoutError(
                f"its layout has {'no' if bias else 'a'} label bias, but adapter.label-bias is "
                f"{str(bias).lower()} in this run; use the run's adapter settings on this client. "
                "If it runs an exported program, export it again: samara phone export … --set "
                f"adapter.label-bias={str(bias).lower()}"
            )
        for setting, expected, value, kind in (
            ("layout-hash", cohort.layout_hash, layout.hash, LayoutError),
            ("model-id", cohort.model_id, identity.model_id, ModelError),
        ):
            if expected and value.hex() != expected:
                raise kind(
                    f"its {setting.replace('-', ' ')} {value.hex()[:12]} differs from "
                    f"cohort.{setting}, {expected[:12]}; use the same model and adapter settings "
                    "on this client"
                )
        if identity.client_count:
            # raises an error if there are too many clients
            self._config.among(identity.client_count)

    def decide(self, identities: Collection[RunIdentity]) -> RunIdentity | None:
        """Return the identity that the hellos decide; None without a decision.

        Args:
            identities: the identity in each client's hello, in the order of client indices.
        """
        if not identities:
            return None
        for identity in dict.fromkeys(identities):
            if self._is_stored(identity):
                return identity
        [(identity, count)] = Counter(identities).most_common(1)
        return identity if count >= self.size and 2 * count > len(identities) else None
