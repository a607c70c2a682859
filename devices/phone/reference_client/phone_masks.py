"""A phone's part in secure aggregation, between the tasks of its gateway."""

from typing import Self

from samara.client.protocol.masking_client import MaskingClient, MaskingMemory, Signer
from samara.shared.frames.vector_report import AnyVectorReport, MaskedReport
from samara.shared.privacy.terms import PrivacyTerms


class PhoneMasks:
    """The masks of a phone, in memory alone: a phone that is started again has left the round.

    Masking frames name no run, and the gateway brings the settings. So masks that were agreed on
    under some settings are forgotten under others, and what the run id is a hash of decides how
    many clients a sum must be of.

    Args:
        client: client index.
        signer: the phone's own key; without it, it takes part in no secure aggregation.
    """

    def __init__(self, client: int, signer: Signer | None) -> None:
        self._client, self._signer = client, signer
        self._settings, self._memory = b"", MaskingMemory()
        self._asked = self._answered = b""

    def under(self, settings: bytes, privacy: PrivacyTerms | None) -> Self | None:
        """Return the masks of the runs with some settings; None if it makes none there.

        Args:
            settings: settings that are part of the run id, sorted JSON.
            privacy: the differential privacy that they ask for.
        """
        if privacy is None or not privacy.is_masked or self._signer is None:
            return None
        if settings != self._settings:
            self._settings, self._memory = settings, MaskingMemory()
            self._asked = self._answered = b""
        minimum, bucket = privacy.minimum, privacy.bucket
        self._masking = MaskingClient(self._client, self._signer, self._memory, minimum, bucket)
        return self

    def answer(self, frame: bytes) -> bytes:
        """Return the answer to a masking frame; nothing to sealed shares, which are kept.

        A gateway gives a phone that reattaches its task again: it gets the same answer.

        Raises:
            MaskingError: if it asks for what this phone does not do.
            FrameError: if it is no sound frame.
        """
        if frame != self._asked:
            self._asked, self._answered = b"", b""
            answer = self._masking.answer(frame)
            self._asked, self._answered = frame, answer
        return self._answered

    def mask(self, report: AnyVectorReport) -> MaskedReport:
        """Return a report under the masks of the round."""
        return self._masking.mask(report)
