"""Free memory under control groups of both versions, around a process or a container."""

from pathlib import Path

import psutil

from samara.shared.machine.free_memory import free_memory, left_in_groups

V1 = "9:name=systemd:/\n4:cpu,memory:/outer/inner\n0::/\n"
V2 = "0::/outer/inner\n"


def group(folder: Path, limit_file: str, limit: str, in_use: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / limit_file).write_text(f"{limit}\n")
    (folder / "memory.stat").write_text(f"file 1000000\n{in_use}\n")


def test_every_group_of_version_1_around_a_process_counts(tmp_path: Path) -> None:
    unlimited, limit_file = str(2**63 - 4096), "memory.limit_in_bytes"
    group(tmp_path / "memory", limit_file, unlimited, "total_rss 5000")
    group(tmp_path / "memory/outer", limit_file, "3000", "total_rss 1000")
    group(tmp_path / "memory/outer/inner", limit_file, "9000", "total_rss 500")
    assert list(left_in_groups(V1, tmp_path)) == [8500, 2000]


def test_every_group_of_version_2_around_a_process_counts(tmp_path: Path) -> None:
    for root in (tmp_path / "alone", tmp_path / "beside" / "unified"):
        group(root / "outer", "memory.max", "3000", "anon 4000")
        group(root / "outer/inner", "memory.max", "max", "anon 500")
    assert list(left_in_groups(V2, tmp_path / "alone")) == [0]
    assert list(left_in_groups(V2, tmp_path / "beside")) == [0]


def test_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    group(tmp_path, "memory.max", "3000", "anon 1000")
    assert list(left_in_groups("0::/host/container\n", tmp_path)) == [2000]
    assert list(left_in_groups("0::/\n", tmp_path)) == [2000]
    assert list(left_in_groups("", tmp_path)) == []
    assert list(left_in_groups(V1, tmp_path / "missing")) == []


def test_this_machine_has_memory() -> None:
    assert 0 < free_memory() <= psutil.virtual_memory().total
