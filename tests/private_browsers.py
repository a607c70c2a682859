"""A private run of boards and browsers, and an owner who limits ε: real processes on loopback.

Every report is clipped, has its own noise and is masked (`privacy.mode = "distributed"` with secure
aggregation), so the server sees only sums. The last browser's owner enters a limit on the page that
allows half of the rounds. This browser refuses the other rounds, and the run continues without it.
The test needs Chromium, the built page (`make phone-page`), and the extras phone, onnx and web. It
prints, as JSON, the privacy that each page shows beside a board's count, and the final rounds and
digests. The digest of a page must be in the server's ledger after the page's round, and must equal
a board's digest in the same round. `samara server check --replay` must reproduce every digest.
"""

from pathlib import Path
from typing import Any

from browser_runs import SECONDS, BrowserRun, at_the_end, started

from benchmarks.scale.mixed_run import samara
from samara.client.limits.privacy_budget import OWN_DELTA, ChargeLog, epsilon_spent
from samara.server.rounds.releases import RELEASES_FILE, read_releases
from samara.shared.privacy.accountant import epsilon_of
from samara.shared.settings.setting import Scalar

SETTINGS: dict[str, Scalar] = {
    "steps": 2,
    "queries": 16,
    "batch": 32,
    "evaluate.every": 0,
    "evaluate.best": False,
    "cohort.timeout": 3600.0,
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
"""Script that enters text into the field of the limit like a keyboard."""
SHOWN = "document.getElementById('{}').innerText"


def limit_half(run: BrowserRun, board: str) -> float:
    """Enter a limit on the last browser's page that allows half of the rounds; return the limit."""
    live = run.live
    live.wait_for_round(1, SECONDS)
    (rho,) = {charge.rho for charge in ChargeLog(live.home(board)).read()}
    rounds = live.settings["rounds"]
    assert isinstance(rounds, int)
    limit = float(f"{1.001 * epsilon_of(rounds // 2 * rho, OWN_DELTA):.6g}")
    run.tabs[run.browsers[-1]].run(ENTER.format(limit=limit))
    return limit


def stopped(run: BrowserRun) -> str:
    """Return the text on the last browser's page after its limit is reached."""
    tab = run.tabs[run.browsers[-1]]
    return str(tab.until(f"{SHOWN.format('stopped')}.trim()", SECONDS))


def ended(run: BrowserRun, board: str) -> dict[str, Any]:
    """Wait for the end; return figures of pages and a board, whose states must be in the ledger.

    Raises:
        AssertionError: if a state is not in the ledger.
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
    """Execute the run, and return the figures."""
    settings = SETTINGS | {"rounds": rounds, "cohort.minimum": boards + browsers - 1}
    with started(folder, settings, (boards, browsers)) as run:
        for name in run.browsers:
            run.join(name)
            run.give_rows(name)
        run.start_boards()
        limit = limit_half(run, "board-0")
        said = stopped(run)
        return {"limit": limit, "the page with it": said} | ended(run, "board-0")
