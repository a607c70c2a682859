"""A phone's masks belong to the settings under which its keys were requested."""

from masked_rounds import Device

from samara.devices.phone.reference_client.phone_masks import PhoneMasks
from samara.shared.protocol.frames.masking import KeyRequest, MaskingKeys
from samara.shared.settings.config import RunConfig
from samara.shared.terms.privacy import PrivacyTerms

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


def masks_under(masks: PhoneMasks, settings: bytes, privacy: PrivacyTerms) -> PhoneMasks:
    found = masks.under(settings, privacy)
    assert found is not None
    return found


def test_a_frame_that_comes_again_gets_the_same_answer() -> None:
    masks = masks_under(PhoneMasks(4, Device()), b"{}", privacy_of())
    first = masks.answer(REQUEST)
    assert MaskingKeys.decode(first).client == 4
    assert masks.answer(REQUEST) == first
    assert masks_under(masks, b"{}", privacy_of()).answer(REQUEST) == first
    other = masks.answer(KeyRequest(bytes(8)).encode())
    assert MaskingKeys.decode(other).mask_key != MaskingKeys.decode(first).mask_key


def test_under_other_settings_a_phone_has_no_keys_of_before() -> None:
    """A gateway cannot request keys under a smaller minimum than the run's."""
    masks, strict, lax = PhoneMasks(4, Device()), privacy_of(minimum=50), privacy_of()
    first = masks_under(masks, b"lax", lax).answer(REQUEST)
    assert masks_under(masks, b"strict", strict).answer(REQUEST) != first
    assert masks_under(masks, b"lax", lax).answer(REQUEST) != first


def test_a_phone_masks_nothing_where_it_is_not_asked_or_has_no_key() -> None:
    masks = PhoneMasks(4, Device())
    for privacy in (None, privacy_of(masked=False)):
        assert masks.under(b"{}", privacy) is None
    assert PhoneMasks(4, None).under(b"{}", privacy_of()) is None
