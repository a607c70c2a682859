"""All measurements that need a GPU, the most important first.

    make gpu GPU="--minutes 9 --out runs/gpu"
    python -m benchmarks.gpu [--rehearse] [--minutes N] [--only PART] [--again PART] [--out FOLDER]

Each part runs in a separate process with its time limit. Results are appended cell by cell to
`results.jsonl`, and `gpu.md` is written again after each part. After an interruption, the same
command continues. Nothing is downloaded or installed. If a library is missing, the cells that need
it fail with that reason, and the next call tries them again. With `--rehearse`, sizes are tiny, and
`tests/accelerator.py` emulates the GPU.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import PARTS, ROOT, Given, Part, Row
from samara.shared.storage.events import append_event, read_events
from samara.shared.storage.files import write_durably

RESULTS, PAGE, ALL_CELLS = "results.jsonl", "gpu.md", "all cells"
FINISHED, FAILED, LIMIT, INTERRUPTED = (
    "finished",
    "with errors",
    "ended at its limit",
    "interrupted",
)
DONE = (FINISHED, LIMIT)
LEAST_SECONDS, GRACE_SECONDS = 20, 15
NAMES = [part.name for part in PARTS]


@dataclass
class Found:
    """The results of a part so far.

    Attributes:
        cells: rows of each measured cell.
        errors: reason for each cell that could not be measured.
        ends: outcome, machine, time and seconds of each call.
    """

    cells: dict[str, list[Row]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    ends: list[dict[str, Any]] = field(default_factory=list)

    @property
    def state(self) -> str:
        """State of the part at the end of the last call; empty without a call."""
        return self.ends[-1]["state"] if self.ends else ""


def read_results(out: Path) -> dict[str, Found]:
    """Read the results of a folder, by part."""
    found = {name: Found() for name in NAMES}
    for event in read_events(out / RESULTS):
        part = found.setdefault(event["part"], Found())
        if "cell" in event:
            part.errors.pop(ALL_CELLS, None)
        if "rows" in event:
            part.cells[event["cell"]] = event["rows"]
            part.errors.pop(event["cell"], None)
        elif "error" in event:
            part.errors[event["cell"]] = event["error"]
        elif "again" in event:
            found[event["part"]] = Found()
        else:
            part.ends.append(event)
    return found


def measure(part: Part, given: Given) -> None:
    """In this process, measure a part's missing cells, and store each cell immediately."""
    before, file = read_results(given.out)[part.name].cells, given.out / RESULTS

    def keep(cell: str, **event: Any) -> None:
        append_event(file, {"part": part.name, "cell": cell} | event)
        print(json.dumps({"cell": cell} | event, ensure_ascii=False), flush=True)

    try:
        for cell, work in part.cells(given):
            if cell not in before:
                try:
                    keep(cell, rows=list(work()))
                except Exception as error:
                    traceback.print_exc()
                    keep(cell, error=_reason(error))
                _free_memory()
    except Exception as error:  # an error in the preparation of all cells
        traceback.print_exc()
        keep(ALL_CELLS, error=_reason(error))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"


def _free_memory() -> None:
    import gc

    gc.collect()
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def run_part(
    part: Part, command: list[str], environment: dict[str, str], out: Path, most: float
) -> str:
    """Run a part in a separate process, and return its final state.

    Args:
        part: part to run.
        command: command of the process.
        environment: environment variables of the process.
        out: folder of the results.
        most: seconds that remain for all parts.
    """
    begun, limit = time.monotonic(), min(60 * part.minutes, most)
    with (out / f"{part.name}.log").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        state = FINISHED
        try:
            process.wait(limit)
        except BaseException as error:
            own_limit = isinstance(error, subprocess.TimeoutExpired) and limit == 60 * part.minutes
            state = LIMIT if own_limit else INTERRUPTED
            _end(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
    found = read_results(out)[part.name]
    if state == FINISHED and (found.errors or process.returncode):
        state = FAILED
    end = {
        "state": state,
        "seconds": round(time.monotonic() - begun, 1),
        "status": process.returncode,
    }
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    append_event(out / RESULTS, {"part": part.name, "when": when} | end | {"on": environment["ON"]})
    return state


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, first by SIGTERM."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sent)
            process.wait(GRACE_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def write_page(out: Path, rehearse: bool) -> None:
    """Write the page with all results so far."""
    found = read_results(out)
    lines = ["# On a GPU", ""]
    if rehearse:
        lines += [
            "**A rehearsal on a pretended GPU with tiny sizes: no figure means anything.**",
            "",
        ]
    lines += ["| part | tells | is | seconds | when (UTC) | on |", "|---|---|---|---|---|---|"]
    for part in PARTS:
        own = found[part.name]
        end = own.ends[-1] if own.ends else {}
        seconds = f"{sum(each['seconds'] for each in own.ends):.0f}" if end else ""
        cells = (part.name, part.tells, own.state or "not run", seconds)
        lines.append(_line((*cells, end.get("when", ""), end.get("on", ""))))
    for part in PARTS:
        own = found[part.name]
        if own.cells or own.errors:
            lines += ["", f"## {part.name}", ""]
            lines += _table([row for rows in own.cells.values() for row in rows])
            lines += [f"- {cell}: {error}" for cell, error in own.errors.items()]
    write_durably(out / PAGE, ("\n".join(lines) + "\n").encode())


def _table(rows: list[Row]) -> Iterable[str]:
    """Yield the lines of tables, one table for consecutive rows with equal columns."""
    columns: list[str] = []
    for row in rows:
        if list(row) != columns:
            columns = list(row)
            yield from ("", _line(columns), "|---" * len(columns) + "|")
        yield _line(f"{v:.4g}" if isinstance(v, float) else v for v in row.values())
    yield ""


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


@contextmanager
def rehearsed(out: Path) -> Iterator[Given]:
    """Emulate a GPU inside the context, and yield the parts' arguments, with a tiny model."""
    from accelerator import pretended_gpus  # type: ignore[import-not-found]
    from tiny_models import BAD, GOOD, save_model  # type: ignore[import-not-found]

    with pretended_gpus():
        model, data = out / "model", out / "data.jsonl"
        if not data.exists():
            model.mkdir(exist_ok=True)
            save_model(model, "causal")
            rows = [
                {"text": f"it was {word} {number}", "label": label}
                for number in range(8)
                for label, word in enumerate((BAD[0], GOOD[0]))
            ]
            write_durably(data, "".join(json.dumps(row) + "\n" for row in rows).encode())
        yield Given(out, True, str(model), dict.fromkeys(("sst2", "rte", "trec"), str(data)))


def _environment(rehearse: bool, wheels: Path | None, temporary: str) -> dict[str, str]:
    """Install the given wheels, and return the environment variables of the parts' processes."""
    folders = [str(ROOT), *([str(ROOT / "tests")] if rehearse else [])]
    if wheels:
        if not (files := sorted(map(str, wheels.glob("*.whl")))):
            raise SystemExit(
                f"--wheels {wheels}: the folder contains no *.whl; give another folder"
            )
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        subprocess.run([*command, "--target", temporary, *files], check=True)
        folders.insert(0, temporary)
    path = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    if rehearse:
        # Triton's interpreter is slow, so only parts about Triton load it
        own |= {"TRITON_INTERPRET": "1", "SAMARA_REPLAY_BACKEND": "numba", "ON": "a pretended GPU"}
        return os.environ | own
    asked = "import torch; print(torch.cuda.get_device_name() + ', torch ' + torch.__version__)"
    ended = subprocess.run(
        [sys.executable, "-c", asked],
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        reason = (ended.stderr.splitlines() or ["?"])[-1]
        raise SystemExit(f"torch finds no GPU here ({reason}); use --rehearse, which needs no GPU")
    return os.environ | own | {"ON": ended.stdout.strip()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="minutes for all parts; the next call continues"
    )
    parser.add_argument("--only", choices=NAMES, action="append", help="parts to run")
    parser.add_argument(
        "--again", choices=NAMES, action="append", default=[], help="forget results"
    )
    parser.add_argument(
        "--wheels", type=Path, help="folder of wheels, installed for this command only"
    )
    parser.add_argument("--model", default="", help="folder of SmolLM2, or another causal LM")
    parser.add_argument("--data", action="append", default=[], metavar="TASK=DATA")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on a pretended GPU")
    parser.add_argument("--part", choices=NAMES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if wrong := [pair for pair in asked.data if "=" not in pair]:
        parser.error(f"--data {wrong[0]}: give TASK=DATA")
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if asked.part:
        data = dict(pair.split("=", 1) for pair in asked.data)
        part = PARTS[NAMES.index(asked.part)]
        real = nullcontext(Given(out, False, asked.model, data))
        with rehearsed(out) if asked.rehearse else real as given:
            measure(part, given)
        return
    until = time.monotonic() + 60 * asked.minutes
    for name in asked.again:
        append_event(out / RESULTS, {"part": name, "again": True})
    found = read_results(out)
    chosen = [part for part in PARTS if part.name in (asked.only or NAMES)]
    if asked.rehearse:  # seconds mean nothing here
        chosen = [replace(part, minutes=10) for part in chosen]
    open_parts = [part for part in chosen if found[part.name].state not in DONE]
    open_parts.sort(key=lambda part: found[part.name].state == FAILED)
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(out), "--model", asked.model]
    command += [word for pair in asked.data for word in ("--data", pair)]
    command += ["--rehearse"] if asked.rehearse else []
    with tempfile.TemporaryDirectory() as temporary:
        environment = _environment(asked.rehearse, asked.wheels, temporary)
        for part in open_parts:
            left = until - time.monotonic()
            if left < LEAST_SECONDS:
                print(f"{part.name} and later parts: no time is left; run the same command again")
                break
            print(
                f"{part.name}: {part.tells}, at most {min(part.minutes, left / 60):.1f} min",
                flush=True,
            )
            state = run_part(part, [*command, "--part", part.name], environment, out, left)
            print(
                f"  {state}", *read_results(out)[part.name].errors.values(), sep="\n  ", flush=True
            )
            write_page(out, asked.rehearse)
    write_page(out, asked.rehearse)
    print(f"{out / PAGE}")


if __name__ == "__main__":
    main()
