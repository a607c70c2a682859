"""A phone's masks belong to the settings that its keys were asked for with."""

import pytest

from benchmarks.privacy.masking import Device
from samara.devices.phone.reference_client.phone_masks import PhoneMasks
from samara.shared.config import RunConfig
from samara.shared.errors import MaskingError
from samara.shared.frames.masking import KeyRequest, MaskingKeys
from samara.shared.privacy.terms import PrivacyTerms

TOKEN = bytes(range(8))
REQUEST = KeyRequest(TOKEN).encode()


def privacy_of(masked: bool = True, minimum: int = 3) -> PrivacyTerms:
    own = {
        "seed-policy": "shared",
        "aggregation.rule": "mean",
        "cohort.minimum": minimum,
        "privacy.mode": "central",
        "privacy.epsilon": 8.0,
        "privacy.secure-aggregation": masked,
    }
    privacy = RunConfig.of(own, "test").terms.privacy
    assert privacy is not None
    return privacy


def test_a_run_says_of_how_many_clients_a_sum_must_be() -> None:
    assert privacy_of(minimum=5).minimum == 5


def test_a_frame_that_comes_again_gets_the_same_answer() -> None:
    masks, privacy = PhoneMasks(4, Device()), privacy_of()
    first = masks.answer(REQUEST, b"{}", privacy)
    assert MaskingKeys.decode(first).client == 4
    assert masks.answer(REQUEST, b"{}", privacy) == first
    other = masks.answer(KeyRequest(bytes(8)).encode(), b"{}", privacy)
    assert MaskingKeys.decode(other).mask_key != MaskingKeys.decode(first).mask_key


def test_under_other_settings_a_phone_has_no_keys_of_before() -> None:
    """A gateway cannot ask for keys with a smaller minimum than the run has."""
    masks, strict, lax = PhoneMasks(4, Device()), privacy_of(minimum=50), privacy_of()
    first = masks.answer(REQUEST, b"lax", lax)
    assert masks.answer(REQUEST, b"strict", strict) != first
    assert masks.answer(REQUEST, b"lax", lax) != first


def test_a_phone_masks_nothing_where_it_is_not_asked_or_has_no_key() -> None:
    masks = PhoneMasks(4, Device())
    for privacy in (None, privacy_of(masked=False)):
        assert masks.client_under(b"{}", privacy) is None
        with pytest.raises(MaskingError, match="this phone masks no reports in this run"):
            masks.answer(REQUEST, b"{}", privacy)
    with pytest.raises(MaskingError, match="masks no reports without its key"):
        PhoneMasks(4, None).client_under(b"{}", privacy_of())
