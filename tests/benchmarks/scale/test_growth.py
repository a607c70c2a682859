"""What grew in a long run, from its samples."""

from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.scale.growth import (
    early_and_late,
    files_table,
    lives_of,
    processes_table,
    slope,
)
from benchmarks.scale.soak import kind_of, program

MIB = 2**20


def sample(number: int, pid: int, mib: float, sizes: dict[str, int]) -> dict[str, Any]:
    process = {"name": "server: up", "pid": pid, "bytes": int(mib * MIB)}
    process |= {"descriptors": 9, "threads": 3}
    return {"round": 10 * number, "processes": [process], "bytes": sizes}


def printed(table: Any) -> str:
    file = StringIO()
    console = Console(width=200, file=file)
    console.print(table)
    return file.getvalue()


def test_the_longest_life_of_a_process_is_shown() -> None:
    samples = [sample(n, 1 if n < 10 else 2, 50 + 0.1 * n, {}) for n in range(60)]
    lives = lives_of(samples)["server: up"]
    assert [len(life.rounds) for life in lives] == [10, 50]
    assert abs(slope(lives[1].rounds, lives[1].bytes) * 1000 / MIB - 10) < 1e-3
    row = next(line for line in printed(processes_table(samples)).splitlines() if "server" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == (
        ["server: up", "2", "490", "51.7", "55.7", "10.00", "55.9", "9", "9", "9", "3"]
    )


def test_a_process_that_lived_briefly_says_nothing() -> None:
    assert "server" not in printed(processes_table([sample(n, 1, 50, {}) for n in range(5)]))


def test_files_that_stay_as_they_are_are_left_out() -> None:
    samples = [sample(n, 1, 50, {"log": 100 * n, "same": 7}) for n in range(40)]
    text = printed(files_table(samples))
    assert "same" not in text
    assert early_and_late([100 * n for n in range(40)]) == (550, 3750)
    assert "log" in text


def test_files_and_processes_are_known_by_their_kinds() -> None:
    assert kind_of(Path("flower/apps/samara.1.2/client/app.py")) == "flower/app.py"
    assert kind_of(Path("ledger/00000012.seg")) == "ledger/*.seg"
    assert program(["python", "-m", "samara", "server", "up", "--run", "x"]) == "server up"
    assert (
        program(["python", "-m", "samara.devices.live.supernode"])
        == "samara.devices.live.supernode"
    )
    assert program(["python", "/bin/flwr-serverapp", "--x"]) == "flwr-serverapp"
