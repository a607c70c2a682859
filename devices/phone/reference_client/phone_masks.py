"""A phone's part in secure aggregation across its gateway's tasks."""

from typing import Self

from samara.client.protocol.masking_client import MaskingClient, MaskingMemory, Signer
from samara.shared.protocol.frames.vector_report import AnyVectorReport, MaskedReport
from samara.shared.terms.privacy import PrivacyTerms


class PhoneMasks:
    """The masks of a phone. They exist only in memory, so a restarted phone leaves the round.

    Masking frames contain no run id; the gateway supplies the run's settings. The masks are dropped
    when the settings change, because the settings decide the minimum number of clients in a sum.

    Args:
        client: client index.
        signer: the phone's key; without it, the phone takes part in no secure aggregation.
    """

    def __init__(self, client: int, signer: Signer | None) -> None:
        self._client = client
        self._signer = signer
        self._settings = b""
        self._memory = MaskingMemory()
        self._asked = self._answered = b""

    def under(self, settings: bytes, privacy: PrivacyTerms | None) -> Self | None:
        """Return the masks for a run with the given settings.

        The result is None if the run uses no masks, or if the phone has no key.

        Args:
            settings: settings of the run as sorted JSON; the run id is a hash of this JSON.
            privacy: differential privacy terms in these settings.
        """
        if privacy is None or not privacy.is_masked or self._signer is None:
            return None
        if settings != self._settings:
            self._settings = settings
            self._memory = MaskingMemory()
            self._asked = self._answered = b""
        minimum = privacy.minimum
        bucket = privacy.bucket
        self._masking = MaskingClient(self._client, self._signer, self._memory, minimum, bucket)
        return self

    def answer(self, frame: bytes) -> bytes:
        """Return the answer to a masking frame. Sealed shares are stored, and the answer is empty.

        When a phone reattaches, the gateway sends its task again, and the phone gives the same
        answer.

        Raises:
            MaskingError: if this phone does not carry out the frame's request.
            FrameError: if the frame is invalid.
        """
        if frame != self._asked:
            self._asked = b""
            self._answered = b""
            answer = self._masking.answer(frame)
            self._asked = frame
            self._answered = answer
        return self._answered

    def mask(self, report: AnyVectorReport) -> MaskedReport:
        """Return a report under the masks of the round."""
        return self._masking.mask(report)
