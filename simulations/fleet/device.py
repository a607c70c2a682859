"""The emulated devices of a fleet: their profiles, costs of a step, and batteries."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

import numpy as np

from samara.client.training.client_data import ClientData, ClientDataSource
from samara.client.training.model_runtime import ModelRuntime
from samara.devices.hardware.estimate import StepEstimate, estimate_readout, estimate_step
from samara.devices.hardware.link import (
    is_available,
    next_available_time,
    next_time_within,
    time_windows,
)
from samara.devices.hardware.model_shape import ModelShape, model_shape
from samara.devices.hardware.profile import DeviceProfile, LinkProfile, load_device, load_link
from samara.devices.hardware.roofline import Grouping, Workload, compute_bytes
from samara.shared.errors import ConfigError, SamaraError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.settings.config import RunConfig
from samara.shared.settings.fleet import DeviceGroup

SHIFT_HOURS = 1.0
"""Maximum shift between the daily hours of a device and of its group, in hours."""
_SAMPLED_CLIENTS = 8
_WHOLE_DAY = 24.0
_HOUR = 3600.0


@dataclass(frozen=True)
class Device:
    """An emulated device of a fleet.

    Attributes:
        number: index of the client on the device.
        group: settings of the device's group.
        profile: device profile in its power mode.
        link: link profile with this device's daily hours.
        charging: daily hours at a charger, as pairs of start and end.
        estimate: time and memory of a step with one micro-batch.
        measuring: time and memory of such a step that also measures curvature.
        passes: number of micro-batches in a step.
        charge: battery charge at the start of the run, in Wh.
        first_pass_seconds: for a run that trains only a readout, seconds of the pass over the
            client's examples before the first step; 0 with adapters inside the model.
    """

    number: int
    group: DeviceGroup
    profile: DeviceProfile
    link: LinkProfile
    charging: tuple[tuple[float, float], ...]
    estimate: StepEstimate
    measuring: StepEstimate
    passes: int
    charge: float
    first_pass_seconds: float = 0.0

    @property
    def step_seconds(self) -> float:
        """The duration in seconds of a step that does not measure curvature."""
        return self._seconds(self.estimate)

    def work(self, steps: int, measuring: int) -> tuple[float, int]:
        """Return the duration of local steps in seconds, and their peak memory in bytes.

        Args:
            steps: number of steps.
            measuring: number of these steps that measure curvature.
        """
        plain = steps - measuring
        own = [self.estimate] * bool(plain) + [self.measuring] * bool(measuring)
        seconds = plain * self.step_seconds + measuring * self._seconds(self.measuring)
        return seconds, max(each.memory.total for each in own)

    @property
    def watts(self) -> float | None:
        """The maximum power draw while computing, in watts; None if unknown."""
        return self.profile.watts

    def is_free(self, at: float, charge: float) -> bool:
        """Return whether the device is connected and has enough power.

        Args:
            at: virtual time in seconds.
            charge: battery charge at that time, in Wh.
        """
        return is_available(self.link, at) and self._has_power(at, charge)

    def next_change(self, at: float, charge: float) -> float:
        """Return the next time at which the device may be able to take part; ∞ if never.

        Args:
            at: virtual time in seconds, at which the device cannot take part.
            charge: battery charge at that time, in Wh.
        """
        there = next_available_time(self.link, at)
        power = at if self._has_power(at, charge) else next_time_within(self.charging, at)
        return inf if there is None or power is None else max(there, power)

    def charge_after(self, charge: float, begun: float, ended: float) -> float:
        """Return the battery charge in Wh at the end of a period.

        During the period the device may charge, and its owner uses it.

        Args:
            charge: battery charge at the start of the period, in Wh.
            begun: start of the period, virtual time in seconds.
            ended: end of the period, virtual time in seconds.
        """
        clock = begun
        group = self.group
        for window in chain(time_windows(self.charging, begun), [(inf, inf)]):
            begin, end = (min(moment, ended) for moment in window)
            charge = max(0.0, charge - group.use * max(0.0, begin - clock) / _HOUR)
            clock = max(clock, begin)
            net = (group.charger - group.use) * max(0.0, end - clock) / _HOUR
            charge = min(group.battery, max(0.0, charge + net))
            clock = max(clock, end)
            if clock >= ended:
                break
        return charge

    def at_charger(self, at: float) -> bool:
        """Return whether the device is at a charger or has no battery."""
        return not self.group.battery or next_time_within(self.charging, at) == at

    def _seconds(self, step: StepEstimate) -> float:
        """Return the duration of a step with all its micro-batches.

        Every micro-batch needs separate passes. Directions are drawn and applied once per step.

        Args:
            step: estimate of a step with one micro-batch.
        """
        return step.time.adapters + self.passes * (step.time.total - step.time.adapters)

    def _has_power(self, at: float, charge: float) -> bool:
        return self.at_charger(at) or charge > self.group.reserve * self.group.battery


def fleet_of(
    config: RunConfig,
    runtime: ModelRuntime,
    data: ClientDataSource,
    profile_of: Callable[[str], DeviceProfile] = load_device,
) -> list[Device]:
    """Return the devices of a run, one per client, group by group.

    Args:
        config: settings of the run.
        runtime: runtime of the model.
        data: source of the clients' data, which determine sequence lengths.
        profile_of: function that returns the profile for a device's name or file.

    Raises:
        ConfigError: if a profile, link or power mode is unknown; the message names all of them.
        ModelError: if the model of `fleet.timed-as` cannot be read, or is too small.
    """
    groups = config.fleet.devices
    mistakes = []
    kinds: list[tuple[DeviceProfile, LinkProfile]] = []
    for index, group in enumerate(groups):
        try:
            profile = profile_of(group.device)
            profile = profile.with_power_mode(group.power) if group.power else profile
            kinds.append((profile, load_link(group.link)))
        except SamaraError as error:
            mistakes.append(f"fleet.devices.{index}: {error}")
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    shape = model_shape(config.fleet.timed_as or str(runtime.base.folder)).at(config.adapter.depth)
    own_shape = not config.fleet.timed_as
    clients = config.data.clients
    shares = [data.share_of(client, clients) for client in range(clients)]
    kept = _kept_examples(config, shares)
    devices: list[Device] = []
    for group, (profile, link), count in zip(
        groups, kinds, counts_of(clients, groups), strict=True
    ):
        work, longest, passes = _workload(config, runtime, data, shape, group, own_shape)
        trunk = 0 if kept else _trunk_bytes(config, shares, shape, profile, work)
        cost, measuring = (
            _estimate(shape, profile, each, longest, kept, runtime, trunk)
            for each in (work, replace(work, curvature=True))
        )
        first_pass = cost.first_pass.total if cost.first_pass is not None else 0.0
        seconds_per_example = first_pass / max(1, kept)
        for number in range(len(devices), len(devices) + count):
            random = np.random.default_rng([config.seed, 0, number])
            shift = float(random.uniform(-SHIFT_HOURS, SHIFT_HOURS))
            hours = _shifted(group.available or tuple(link.available), shift)
            devices.append(
                Device(
                    number,
                    group,
                    profile,
                    link.model_copy(update={"available": list(hours)}),
                    tuple(_shifted(group.charging, shift)),
                    cost,
                    measuring,
                    passes,
                    group.battery * float(random.uniform(group.reserve, 1.0)),
                    seconds_per_example * len(shares[number].in_split(Split.TRAIN)),
                )
            )
    return devices


def _kept_examples(config: RunConfig, shares: Sequence[ClientData]) -> int:
    """Return the number of examples in a readout's step for a typical client.

    The number is 0 with adapters inside the model.
    """
    if config.adapter.inner_layers:
        return 0
    sampled = [len(share.in_split(Split.TRAIN)) for share in shares[:_SAMPLED_CLIENTS]]
    return max(1, min(config.batch, round(sum(sampled) / len(sampled))))


def _estimate(
    shape: ModelShape,
    profile: DeviceProfile,
    work: Workload,
    longest: int,
    kept: int,
    runtime: ModelRuntime,
    trunk: int,
) -> StepEstimate:
    """Return the cost of a micro-batch, or of a readout's whole step on cached examples."""

    def of(work: Workload) -> StepEstimate:
        if kept:
            return estimate_readout(shape, profile, work, runtime.label_count, kept)
        return estimate_step(shape, profile, work)

    memory = of(replace(work, sequence=longest)).memory
    return replace(of(work), memory=replace(memory, trunk=trunk))


def _trunk_bytes(
    config: RunConfig,
    shares: Sequence[ClientData],
    shape: ModelShape,
    profile: DeviceProfile,
    work: Workload,
) -> int:
    """Return the bytes of trunk outputs that a typical client keeps between passes."""
    if config.trunk_cache_folder or not work.first_adapted(shape):
        return 0
    sampled = shares[:_SAMPLED_CLIENTS]
    prompts = [prompt for share in sampled for prompt in share.tokenized(Split.TRAIN).prompts]
    tokens = sum(len(sequence) for prompt in prompts for sequence in prompt.sequences)
    used = min(len(prompts) / len(sampled), config.rounds * config.steps * config.batch)
    width = compute_bytes(profile, work.quantization)
    return round(min(config.trunk_cache, used * tokens / len(prompts) * shape.hidden * width))


def counts_of(clients: int, groups: Sequence[DeviceGroup]) -> list[int]:
    """Return the number of clients in each group, by the largest remainder method."""
    whole = sum(group.share for group in groups)
    exact = [clients * group.share / whole for group in groups]
    counts = [int(share) for share in exact]
    order = sorted(range(len(groups)), key=lambda index: counts[index] - exact[index])
    for index in order[: clients - sum(counts)]:
        counts[index] += 1
    return counts


def _shifted(hours: Sequence[tuple[float, float]], shift: float) -> Iterator[tuple[float, float]]:
    """Yield daily hours, shifted by a number of hours; a whole day is not shifted."""
    for begin, end in hours:
        whole = end - begin >= _WHOLE_DAY
        moved = begin if whole else (begin + shift) % _WHOLE_DAY
        yield moved, moved + end - begin


def _workload(
    config: RunConfig,
    runtime: ModelRuntime,
    data: ClientDataSource,
    shape: ModelShape,
    group: DeviceGroup,
    own_shape: bool,
) -> tuple[Workload, int, int]:
    """Return the workload of a micro-batch on a group's device.

    Time depends on the mean sequence length. Peak memory depends on the longest sequence, because
    the other sequences of its batch are padded to this length.

    Returns:
        The workload, the length of the longest sequence, and the number of micro-batches per step.
    """
    clients = config.data.clients
    prompts = [
        prompt
        for client in range(min(clients, _SAMPLED_CLIENTS))
        for prompt in data.share_of(client, clients).tokenized(Split.TRAIN).prompts
    ]
    sequences = [sequence for prompt in prompts for sequence in prompt.sequences]
    places = [len(own) for prompt in prompts for own in prompt.supervised]
    grouping: Grouping = "both" if config.grouping == "auto" else config.grouping
    examples = min(config.examples_in_pass or config.batch, config.batch)
    blocks = len(shape.blocks)
    adapted = runtime.adapted_block_count
    top = min(blocks, adapted) if own_shape or config.adapter.layers != "all" else blocks
    work = Workload(
        sequence=round(sum(map(len, sequences)) / len(sequences)),
        batch=examples * round(len(sequences) / len(prompts)),
        queries=config.queries,
        grouping=grouping,
        differences=config.differences,
        quantization=group.quantization,
        top=top,
        rank=config.adapter.rank,
        supervised=round(sum(places) / len(places)),
    )
    # a readout needs no micro-batches: its step is one product over all examples
    passes = -(-config.batch // examples) if config.adapter.inner_layers else 1
    work = replace(work, sequence=max(work.sequence, work.supervised))
    return work, max(work.sequence, *map(len, sequences)), passes
