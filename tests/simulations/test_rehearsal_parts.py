"""Rehearsals: settings, time dilation, commands of the processes, and the report."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.devices.hardware.hold import Held, Hold
from samara.shared.errors import ConfigError, DeviceError
from samara.shared.settings.config import RunConfig, load_scenario
from samara.shared.tasks.catalog import load_task
from samara.simulations.rehearsal import fault_means
from samara.simulations.rehearsal.arguments import served_settings
from samara.simulations.rehearsal.dealt_data import write_task
from samara.simulations.rehearsal.faults import FaultReport, check_faults, first_report, timeline
from samara.simulations.rehearsal.plan import (
    CLIENTS_SHARE,
    PlannedClient,
    check_dilation,
    least_dilation,
    patience,
)
from samara.simulations.rehearsal.preparation import new_place
from samara.simulations.rehearsal.processes import RehearsedClient
from samara.simulations.rehearsal.report import ClientReport, RehearsalReport, relative_error
from samara.simulations.rehearsal.run import rehearse
from samara.simulations.rehearsal.table import report_table

SCENARIO = """
[data]
clients = 2

[[fleet.devices]]
device = "laptop"
share = 1

[[rehearsal.faults]]
kind = "{kind}"
client = {client}
at = {at}
"""


def scenario(folder: Path, kind: str = "power-cut", client: int = 1, at: float = 3.0) -> Path:
    file = folder / "scenario.toml"
    file.write_text(SCENARIO.format(kind=kind, client=client, at=at))
    return file


def test_faults_are_read_from_a_scenario_and_survive_flowers_config(tmp_path: Path) -> None:
    config = load_scenario(scenario(tmp_path))
    (fault,) = config.rehearsal.faults
    assert (fault.kind, fault.client, fault.at, fault.seconds) == ("power-cut", 1, 3.0, 30.0)
    assert RunConfig.of(config.flat(), "flat").rehearsal == config.rehearsal
    assert "rehearsal.faults" not in config.identity()


def test_all_mistakes_of_a_fault_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load_scenario(scenario(tmp_path, "flood", -1, -2.0))
    for place in ("faults.0.kind", "faults.0.client", "faults.0.at"):
        assert place in str(raised.value)


def test_a_fault_of_a_client_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    config = load_scenario(scenario(tmp_path, client=2))
    with pytest.raises(
        ConfigError, match=r"faults\.0: client 2 does not exist; clients are 0 to 1"
    ):
        check_faults(config.rehearsal.faults, config.data.clients)


@pytest.mark.parametrize(("second", "overlaps"), [(3.0, True), (32.9, True), (33.0, False)])
def test_two_faults_of_a_kind_may_not_overlap(
    tmp_path: Path, second: float, overlaps: bool
) -> None:
    (fault,) = load_scenario(scenario(tmp_path)).rehearsal.faults
    later = fault.model_copy(update={"at": second})
    other = later.model_copy(update={"kind": "link-cut"})
    check_faults([fault, other], 2)
    if not overlaps:
        check_faults([fault, later], 2)
        return
    with pytest.raises(ConfigError, match=r"faults\.1: overlaps with rehearsal\.faults\.0"):
        check_faults([fault, later], 2)


def test_what_the_machine_does_not_permit_is_refused_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking() -> None:
        raise DeviceError("there is no such thing here")

    monkeypatch.setitem(fault_means._CHECKS, "disk-full", lacking)
    (cut,) = load_scenario(scenario(tmp_path)).rehearsal.faults
    full = cut.model_copy(update={"kind": "disk-full"})
    fault_means.check_means([cut])
    with pytest.raises(ConfigError) as raised:
        fault_means.check_means([cut, full, full])
    assert str(raised.value).splitlines() == [
        f"rehearsal.faults.{number}: disk-full: there is no such thing here" for number in (1, 2)
    ]


def test_patience_is_longer_with_slower_clients_and_longer_faults(tmp_path: Path) -> None:
    (fault,) = load_scenario(scenario(tmp_path)).rehearsal.faults
    hold = Hold("laptop", 2**30, 0.5, None)
    one = PlannedClient(0, "0-laptop", hold, seconds=2.0, memory_bytes=1, quantization="fp32")
    assert patience([one], [], 0.0, 1.0) == 310
    assert patience([one], [], 1.0, 10.0) == 450
    assert patience([one, one], [fault], 1.0, 10.0) == 750


@given(
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12),
    st.integers(1, 64),
)
def test_with_the_least_dilation_all_clients_fit_on_the_cores(
    shares: list[float], machine_cores: int
) -> None:
    least = least_dilation(shares, machine_cores)
    assert least >= 1
    assert max(shares) / least <= 1 + 1e-9
    assert sum(shares) / least <= CLIENTS_SHARE * machine_cores + 1e-9
    check_dilation(least, shares, machine_cores)
    if least > 1:
        with pytest.raises(ConfigError, match=r"--dilation \d+\.\d or more"):
            check_dilation(least * 0.99, shares, machine_cores)


@pytest.mark.parametrize("dilation", [0.5, -1.0, float("nan"), float("inf")])
def test_a_dilation_that_is_no_number_is_refused(tmp_path: Path, dilation: float) -> None:
    config, out = load_scenario(scenario(tmp_path)), tmp_path / "out"
    with pytest.raises(DeviceError, match=r"--dilation .*: give a finite number of at least 1"):
        rehearse(config, dilation, out, print)
    assert not out.exists()


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(ConfigError, match="/proc/results: results cannot be written there"):
        new_place(Path("/proc/results"))


class FakeLimit:
    """A memory limit that has killed a number of processes."""

    limit_bytes = 450 * 2**20
    killed = 0

    def kills(self) -> int:
        return self.killed


class FakeMeans:
    """Means of causing faults that do nothing."""

    def take_memory(self) -> None: ...

    def give_memory(self) -> None: ...


def rehearsed(said: Path) -> tuple[RehearsedClient, FakeLimit]:
    limit = FakeLimit()
    held = Held(limit, None, None)  # type: ignore[arg-type]
    planned = PlannedClient(0, "0-laptop", Hold("laptop", 2**30, 1.0, None), 2.0, 500, "fp32")
    made = RehearsedClient(planned, held, FakeMeans(), said, None)  # type: ignore[arg-type]
    return made, limit


READY = "samara.device: 0-laptop: trainer ready after 3 s\n"
KILLED = "samara.device: the trainer was killed, as the kernel does\n"
ANSWERED = "samara.device: answered: train, round 1, 3.00 s\n"


@pytest.mark.parametrize("said", [KILLED, READY + KILLED])
def test_a_client_whose_steps_do_not_fit_has_died(tmp_path: Path, said: str) -> None:
    log = tmp_path / "said"
    log.write_text(said)
    client, limit = rehearsed(log)
    assert not client.check()
    limit.killed = 1
    assert client.check()
    assert (
        "has too little memory: the kernel killed it at its limit of 450 MiB before its"
        in client.died
    )


def test_a_client_that_lacked_memory_during_a_fault_has_not_died(tmp_path: Path) -> None:
    log = tmp_path / "said"
    log.write_text(READY + KILLED)
    client, limit = rehearsed(log)
    client.take_memory()
    limit.killed = 2
    assert not client.check()
    client.give_memory()
    assert not client.check()
    limit.killed = 3
    assert client.check()


def test_a_client_that_has_reported_was_large_enough(tmp_path: Path) -> None:
    log = tmp_path / "said"
    log.write_text(READY + ANSWERED + KILLED)
    client, limit = rehearsed(log)
    limit.killed = 1
    assert not client.check()


def test_the_moments_of_faults_are_in_the_order_of_time(tmp_path: Path) -> None:
    config = load_scenario(scenario(tmp_path))
    (fault,) = config.rehearsal.faults
    earlier = fault.model_copy(update={"at": 1.0, "seconds": 2.0})
    moments = timeline([fault, earlier], 10.0)
    assert [(m.at, m.number, m.begins) for m in moments] == [
        (10.0, 1, True),
        (30.0, 1, False),
        (30.0, 0, True),
        (330.0, 0, False),
    ]


def test_the_server_gets_its_own_settings_and_longer_deadlines(tmp_path: Path) -> None:
    config = RunConfig.of(
        {"cohort.timeout": 10.0, "rounds": 3, "data.clients": 2}
        | {"fleet.devices": '[{"device": "laptop", "share": 1}]'},
        "test",
    )
    served = served_settings(config.flat(), 4.0)
    assert json.loads(served["cohort.timeout"]) == 40.0
    assert served["rounds"] == "3"
    assert not {"micro-batch", "fleet.devices", "out"} & served.keys()


def test_a_dealt_task_asks_as_the_original(tmp_path: Path) -> None:
    task, file = load_task("sst2"), tmp_path / "task.toml"
    write_task(task, file)
    dealt = load_task(str(file))
    rendered = task.render({"text": "a {film} to see"})
    assert dealt.render({"text": rendered}) == rendered
    assert (dealt.prompts(), dealt.labels) == (task.prompts(), (("0",), ("1",)))
    with pytest.raises(ConfigError, match="has its label word inside the text"):
        write_task(load_task("rte-mask"), file)


def client(**changes: object) -> ClientReport:
    values: dict[str, object] = {
        "name": "0-laptop",
        "device": "laptop",
        "fits": True,
        "limit_bytes": 2**30,
        "predicted_memory": 500,
        "memory": 550,
        "predicted_seconds": 2.0,
        "seconds": 1.9,
        "answers": 3,
        "frames_up": 10,
        "frames_down": 10,
        "up": 90,
        "down": 90,
        "round": 3,
        "digest": "ab",
        "agrees": True,
        "died": "",
    }
    return ClientReport(**(values | changes))  # type: ignore[arg-type]


def test_the_report_is_good_if_all_went_as_it_should() -> None:
    small = client(fits=False, died="is too small", round=0, digest="", agrees=False)
    fault = FaultReport("power-cut", "0-laptop", 3.0, 1, 2, 3)

    def is_good(*clients: ClientReport, faults: tuple[FaultReport, ...] = (fault,)) -> bool:
        return RehearsalReport(1.0, 3, True, clients, faults).is_good

    assert is_good(client(), small)
    assert not is_good(client(agrees=False))
    assert not is_good(client(died="ended with status 1"))
    assert not is_good(client(), faults=(FaultReport("link-cut", "0-laptop", 3.0, 1, 2, None),))
    assert not RehearsalReport(1.0, 3, False, (client(),), ()).is_good


def test_how_far_it_was_from_the_prediction() -> None:
    assert relative_error(500, 550) == pytest.approx(0.1)
    assert relative_error(2.0, None) is None
    assert relative_error(0.0, 1.0) is None


def test_bytes_are_not_said_where_links_are_not_held() -> None:
    held, free = client(up=96, down=303), client(up=None, down=None)
    table = report_table(RehearsalReport(1.0, 3, True, (held, free), ()))
    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert cells["bytes up"] == ["10 → 32", "10 → –"]
    assert cells["bytes down"] == ["10 → 101", "10 → –"]


def test_when_a_client_is_back() -> None:
    reporters = {1: ["a", "b"], 2: ["b"], 3: ["b"], 4: ["a"]}
    assert first_report("a", 1, reporters) == 4
    assert first_report("b", 4, reporters) is None


@pytest.mark.parametrize(
    ("began", "ended", "back", "words"),
    [
        (None, None, None, "the run ended before the fault began"),
        (1, None, None, "no round followed the fault"),
        (1, 2, None, "never reported again"),
        (1, 2, 3, "reported again in round 3"),
    ],
)
def test_what_became_of_a_fault(
    began: int | None, ended: int | None, back: int | None, words: str
) -> None:
    fault = FaultReport("link-cut", "0-laptop", 3.0, began, ended, back)
    assert fault.describe().endswith(words)
    assert fault.is_survived == (words != "never reported again")
