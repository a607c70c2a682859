"""Small real models, data and settings for tests: built once per test run, never downloaded."""

import atexit
import fcntl
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
import typer.testing
from commands import Run
from costs import (  # noqa: F401 - hooks
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from forked import ForkingPopen, shorten_exports, usual_popen
from fsync import wait_for_no_disk
from hypothesis import settings as hypothesis_settings
from tiny_models import BAD, GOOD, THINGS, save_model

from samara.command import main

hypothesis_settings.register_profile("samara", deadline=None)
hypothesis_settings.load_profile("samara")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has its background jobs ignore Ctrl-C, and so would all processes that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if not torch.cuda.is_available():
    # Triton reads it when it is first imported, which bitsandbytes does too.
    os.environ["TRITON_INTERPRET"] = "1"

SPREAD = 0.8
"""Share of the short files among which long files are spread, so that short files end the run."""


def pytest_configure() -> None:
    """Fork workers and processes with the libraries loaded; skip fsync; build commands once."""
    gc.disable()  # until all tests are collected, which creates little garbage
    subprocess.Popen = ForkingPopen  # type: ignore[misc]
    wait_for_no_disk()
    shorten_exports()
    typer.main.get_command = typer.testing._get_command = cache(typer.main.get_command)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Let the first worker compile modules and kernels; the others wait for its files."""
    with Path(__file__).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread files with whole runs or slow tests, which often wait, among the first short files."""
    long = {item.path: 0 for item in items if "e2e" in item.path.parts or _is_slow(item)}
    short = {item.path: 0 for item in items if item.path not in long}
    place = {path: number / len(long) * SPREAD for number, path in enumerate(long)}
    place |= {path: number / len(short) for number, path in enumerate(short)}
    items.sort(key=lambda item: place[item.path])


def pytest_collection_finish() -> None:
    """Exclude libraries and collected tests from garbage collections, which some tests request."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # nanobind reports what is left at the end


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


@pytest.fixture
def cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make processes that the test starts import the libraries themselves."""
    monkeypatch.setattr(subprocess, "Popen", usual_popen)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache folder of tests and their processes, for example for blobs."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folder of a tiny model of a family: causal, masked or encoder; of three blocks or fewer."""
    folders: dict[tuple[str, int], Path] = {}

    def folder_of(family: str, blocks: int = 3) -> Path:
        if (family, blocks) not in folders:
            folders[family, blocks] = save_model(tmp_path_factory.mktemp(family), family, blocks)
        return folders[family, blocks]

    return folder_of


@pytest.fixture(scope="session")
def shape_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    """Folder of a tiny model of one of the shapes of `streams`, with a tied head or not."""
    from streams import save_shape

    folders: dict[tuple[str, bool], Path] = {}

    def folder_of(shape: str, tied: bool) -> Path:
        if (shape, tied) not in folders:
            folders[shape, tied] = save_shape(tmp_path_factory.mktemp(shape), shape, tied)
        return folders[shape, tied]

    return folder_of


@pytest.fixture(scope="session")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 labelled sentences of three users in one JSONL file."""
    file = tmp_path_factory.mktemp("data") / "sentences.jsonl"
    rows = [
        {
            "text": f"the {THINGS[i % 4]} was {(GOOD if i % 2 else BAD)[i % 5]} "
            f"{['.', '!'][i // 7 % 2]} a {THINGS[i // 3 % 4]} {['not', 'very'][i // 11 % 2]}",
            "label": i % 2,
            "user": f"user{i % 3}",
        }
        for i in range(240)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def settings(
    model_folder: Callable[[str], Path], data_file: Path, tmp_path: Path
) -> dict[str, Any]:
    """Flat settings of a small run on the causal model; a test changes the settings it is about."""
    return {
        "model.path": str(model_folder("causal")),
        "data.path": str(data_file),
        "data.clients": 3,
        "data.partition": "iid",
        "task": "sst2",
        "objective": "cross-entropy",
        "adapter.layers": "top:2",
        "adapter.rank": 4,
        "adapter.alpha": 4.0,
        "learning-rate": 0.1,
        "personal.rounds": 0,
        "rounds": 3,
        "steps": 2,
        "queries": 2,
        "batch": 4,
        "threads": 1,
        "out": str(tmp_path / "run"),
    }


@pytest.fixture
def readout(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a small run that trains a readout alone."""
    return settings | {"adapter.layers": "readout", "batch": 1000, "micro-batch": 4}


@pytest.fixture
def empty_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache without the dampings of other tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def small(settings: dict[str, Any]) -> dict[str, Any]:
    """Flat settings of two clients that train and a newcomer; every method can run with them."""
    return settings | {
        "rounds": 2,
        "personal.rounds": 2,
        "personal.learning-rate": 0.1,
        "adapter.label-bias": True,
        "cohort.newcomers": 1,
        "evaluate.every": 1,
        "evaluate.limit": 8,  # one pass of a split
    }


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a finished run with some settings, simulated once; tests only read it."""
    from federations import config_of

    from samara.simulations.simulate import simulate

    folders: dict[str, Path] = {}

    def folder_of(settings: dict[str, Any], **changes: Any) -> Path:
        config = config_of(settings | {"out": ""}, **changes)
        key = json.dumps(config.flat(), sort_keys=True)
        if key not in folders:
            out = tmp_path_factory.mktemp("simulated") / "run"
            folders[key] = simulate(config.with_values({"out": str(out)}))
        return folders[key]

    return folder_of


@pytest.fixture(scope="session")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[Any]], list[Any]]:
    """Function that returns the results of cases of the phone page's client, in Node."""
    from typescript import PHONE, node_runner

    return node_runner(tmp_path_factory.mktemp("page"), PHONE)


@pytest.fixture(scope="session")
def page_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the programs of the phone page's client, each exported once."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def page_run(
    settings: dict[str, Any], page_programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Function that makes a run for the phone page's client; see `page_runs`."""
    from page_runs import page_run_of

    return partial(page_run_of, settings, page_programs, tmp_path, monkeypatch)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `samara` with arguments: exit status, standard output, standard error."""

    def command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["samara", *map(str, arguments)])
        capsys.readouterr()  # what other fixtures printed, such as a progress bar of a saved model
        with pytest.raises(SystemExit) as ended:
            sys.exit(main())
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return command


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path leaves room for the name of a socket."""
    return tmp_path_factory.mktemp("s")
