"""Transfers on the virtual clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.devices.hardware.link import download, is_available, next_available_time, upload
from samara.devices.hardware.profile import LinkProfile, load_link, shipped_links

HOUR = 3600.0
WIFI = load_link("wifi")


def _link(**changes: object) -> LinkProfile:
    return load_link("lte").model_copy(update={"jitter": 0.0, "loss": 0.0, **changes})


def test_a_quiet_link_is_latency_and_rate() -> None:
    link = _link(down=1e6, latency=0.5)
    done = download(link, 1_460_000, 0.0, 0)
    assert done is not None
    assert done.bytes == 1_000 * 1_500
    assert done.seconds == pytest.approx(0.5 + 1.5)
    assert done.end == done.seconds


def test_up_and_down_have_their_own_rates() -> None:
    link = load_link("metered-2g")
    up, down = upload(link, 10_000, 0.0, 0), download(link, 10_000, 0.0, 0)
    assert up is not None
    assert down is not None
    assert up.seconds > down.seconds


def test_a_night_that_passes_midnight() -> None:
    assert WIFI.available == [(22.0, 31.0)]
    assert is_available(WIFI, 23 * HOUR)
    assert is_available(WIFI, 3 * HOUR)
    assert not is_available(WIFI, 12 * HOUR)
    assert next_available_time(WIFI, 12 * HOUR) == 22 * HOUR
    assert next_available_time(WIFI, 36 * HOUR) == 46 * HOUR


def test_a_transfer_waits_for_an_unavailable_link() -> None:
    done = upload(WIFI, 100, 12 * HOUR, 0)
    assert done is not None
    assert done.waiting_seconds == pytest.approx(10 * HOUR)


def test_an_outage_interrupts() -> None:
    link = _link(available=[(0.0, 1.0)], up=1_500.0, latency=0.0)
    done = upload(link, 1_460 * 5_400, 0.0, 0)
    assert done is not None
    assert done.seconds == pytest.approx(1.5 * HOUR)
    assert done.waiting_seconds == pytest.approx(23 * HOUR, abs=1e-3)
    assert done.end == pytest.approx(24.5 * HOUR)


def test_a_link_that_is_never_there() -> None:
    assert upload(_link(available=[]), 1, 0.0, 0) is None


@given(
    st.sampled_from(shipped_links()), st.integers(0, 10**7), st.floats(0, 1e6), st.integers(0, 9)
)
def test_a_seed_decides(link: LinkProfile, size: int, at: float, seed: int) -> None:
    done = upload(link, size, at, seed)
    assert done == upload(link, size, at, seed)
    assert done is not None
    assert done.seconds >= link.latency + size / link.up * 0.999
    assert done.bytes >= size
    assert done.waiting_seconds >= 0


@given(st.floats(0, 1e7), st.lists(st.tuples(st.floats(0, 23), st.floats(0.1, 24)), max_size=4))
def test_the_next_time_is_a_time(at: float, spans: list[tuple[float, float]]) -> None:
    link = _link(available=[(begin, begin + span) for begin, span in spans])
    then = next_available_time(link, at)
    assert (then is None) == (not spans)
    if then is not None:
        assert at <= then <= at + 24 * HOUR
        assert next_available_time(link, then) == pytest.approx(then)


@given(
    st.floats(0, 1e7),
    st.lists(st.tuples(st.floats(0, 23.9), st.floats(0.05, 24)), min_size=1, max_size=4),
    st.integers(0, 10**6),
)
def test_every_transfer_ends(at: float, spans: list[tuple[float, float]], size: int) -> None:
    link = _link(available=[(begin, begin + span) for begin, span in spans], up=100.0)
    done = upload(link, size, at, 0)
    assert done is not None
    longest = max(span for _, span in spans)
    assert done.waiting_seconds <= 24 * HOUR * (2 + done.seconds / (longest * HOUR))


def test_losses_cost_time_and_bytes() -> None:
    quiet, lossy = _link(), _link(loss=0.2)
    one, other = upload(quiet, 10**6, 0.0, 1), upload(lossy, 10**6, 0.0, 1)
    assert one is not None
    assert other is not None
    assert other.bytes > 1.15 * one.bytes
    assert other.seconds > 1.15 * one.seconds
