"""A private run of boards and browsers, and an owner who limits ε: real processes on loopback.

    python -m benchmarks.faults.private_browser_run [--rounds 6] [--boards 2] [--browsers 2]
        [--folder DIR]

Every report is clipped, has noise of its own and lies under masks (`privacy.mode = "distributed"`
with secure aggregation), so the server sees sums alone. The last browser's owner enters a limit on
the page that half of the rounds fit; it refuses the others, which go on with everybody else. Needs
what `browser_run` needs but for phones. Prints as JSON what each page shows of the privacy that was
spent beside what a board has counted, and where everybody stands. Each figure is proven: a page's
round and digest are a state of the server's ledger and, in the same round, a board's, and `samara
server check --replay` reproduces every digest.
"""

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.faults.browser_run import SECONDS, Disturbed, at_the_end, started
from benchmarks.scale.mixed_run import samara
from samara.client.protocol.privacy_budget import OWN_DELTA, ChargeLog, epsilon_spent
from samara.server.rounds.releases import RELEASES_FILE, read_releases
from samara.shared.privacy.accountant import epsilon_of
from samara.shared.settings import Scalar

PRIVATE: dict[str, Scalar] = {
    "method": "global",
    "personal.rounds": 0,
    "learning-rate": 0.1,
    "seed-policy": "shared",
    "aggregation.rule": "mean",
    "privacy.mode": "distributed",
    "privacy.noise-multiplier": 1.0,
    "privacy.honest-share": 0.7,
    "privacy.secure-aggregation": True,
}
ENTER = """(() => {{
  const field = document.getElementById("limit");
  field.value = "{limit}";
  field.dispatchEvent(new Event("change"));
}})()"""
"""Script that does what a keyboard does in the field of the limit."""
SHOWN = "document.getElementById('{}').innerText"


def limit_half(run: Disturbed, board: str) -> float:
    """Enter a limit on the last browser's page that half of the rounds fit; returns it."""
    live = run.live
    live.wait_for_round(1, SECONDS)
    (rho,) = {charge.rho for charge in ChargeLog(live.home(board)).read()}
    rounds = live.settings["rounds"]
    assert isinstance(rounds, int)
    limit = float(f"{1.001 * epsilon_of(rounds // 2 * rho, OWN_DELTA):.6g}")
    run.tabs[run.browsers[-1]].run(ENTER.format(limit=limit))
    return limit


def stopped(run: Disturbed) -> str:
    """Return what the last browser's page shows once its limit is reached."""
    tab = run.tabs[run.browsers[-1]]
    return str(tab.until(f"{SHOWN.format('stopped')}.trim()", SECONDS))


def ended(run: Disturbed, board: str) -> dict[str, Any]:
    """Wait for the end; returns what pages and a board say, whose states must be the ledger's.

    Raises:
        AssertionError: if one is not.
    """
    live, status = run.live, at_the_end(run)
    live.check()
    digests, (reached, digest) = live.digests(), live.positions()[board]
    for name, one in status.items():
        assert digests[one["round"]] == one["digest"], f"{name} stands elsewhere"
        if one["round"] == reached:
            assert one["digest"] == digest, f"{name} stands elsewhere than {board}"
    assert "every digest reproduced" in samara(
        live.folder, "server", "check", "--replay", str(live.run)
    )
    releases = read_releases(live.run / RELEASES_FILE)
    return {
        "reports in each round's sum": [one.sums[0].clients for one in releases],
        board: {
            "round": reached,
            "digest": digest,
            "epsilon": epsilon_spent(ChargeLog(live.home(board)).read()),
        },
        "browsers": {
            name: {
                "round": one["round"],
                "digest": one["digest"],
                "epsilon": one["sent"]["epsilon"],
                "reports": one["sent"]["answers"],
                "shows": run.tabs[name].run(SHOWN.format("noised")),
            }
            for name, one in status.items()
        },
    }


def measure(folder: Path, rounds: int, boards: int, browsers: int) -> dict[str, Any]:
    """Run, and return the figures."""
    settings = PRIVATE | {"rounds": rounds, "cohort.minimum": boards + browsers - 1}
    with started(folder, settings, (boards, 0, browsers)) as run:
        limit = limit_half(run, "board-0")
        said = stopped(run)
        return {"limit": limit, "the page with it": said} | ended(run, "board-0")


def main(
    rounds: Annotated[int, typer.Option(help="Rounds.", min=2)] = 6,
    boards: Annotated[int, typer.Option(help="Boards, at least one.")] = 2,
    browsers: Annotated[int, typer.Option(help="Browsers, at least one.")] = 2,
    folder: Annotated[Path | None, typer.Option(help="Folder that stays; short.")] = None,
) -> None:
    """Print the figures."""
    with ExitStack() as stack:
        used = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p")))
        used.mkdir(parents=True, exist_ok=True)
        figures = measure(used, rounds, boards, browsers)
        print(json.dumps(figures, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    typer.run(main)
