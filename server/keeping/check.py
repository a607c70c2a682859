"""Read-only checks of a run's folder, with a remedy for each problem.

One check opens a copy of the ledger. It shows which repairs the next `samara server up` would make,
or why that command would refuse the run. Other checks find problems that would otherwise appear
late, such as a key that other users can read, or a certificate that will expire.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samara.server.keeping.folder_checks import (
    check_certificates,
    check_cohort_secret,
    check_keys,
    check_permissions,
)
from samara.server.live.connections import read_connections
from samara.server.live.flower_processes import find_superlinks
from samara.server.live.keys import KEYS_FOLDER
from samara.server.live.run_lock import check_not_moved
from samara.server.live.run_supervisor import FLOWER_FOLDER
from samara.server.restored_run import RestoredRun
from samara.server.rounds.releases import RELEASES_FILE, parse_releases
from samara.server.store import (
    LAYOUT_FILE,
    LEDGER_FOLDER,
    METRICS_FILE,
    cluster_folders,
    read_layout,
)
from samara.shared.check_result import CheckResult, Outcome, check_disk
from samara.shared.errors import BlobError, SamaraError
from samara.shared.network.certificates import CERTIFICATES_FOLDER
from samara.shared.privacy.accountant import ROUNDING, epsilon_of
from samara.shared.protocol.ledger.copying import copy_ledger
from samara.shared.protocol.ledger.latest_state import read_latest_state
from samara.shared.protocol.ledger.reading import read_ledger, without_remedy
from samara.shared.protocol.ledger.records import Record
from samara.shared.protocol.step_size import STEP_SIZE_FILE
from samara.shared.results.result import RESULT_FILE
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import SETTINGS_FILE, unknown_keys
from samara.shared.storage.blob_store import BlobStore, parse_reference
from samara.shared.storage.events import read_whole_events
from samara.shared.terms.run_terms import RunTerms

_RESTORE = "restore the newest backup into another folder: samara server restore"


def examine(run: Path) -> Iterator[CheckResult]:
    """Check a run's folder, in the order in which failures should be fixed.

    Args:
        run: folder of a run; it may be served at the same time.

    Raises:
        SamaraError: if there is no such folder.
    """
    if not run.is_dir():
        what = "is a file" if run.exists() else "does not exist"
        raise SamaraError(f"{run}: {what}; name the folder of a run")
    run = run.resolve()
    yield check_disk(shutil.disk_usage(run).free, run, "move the run: samara server backup --move")
    yield from _check_server(run)
    if any((run / name).exists() for name in (FLOWER_FOLDER, CERTIFICATES_FOLDER, KEYS_FOLDER)):
        yield from check_permissions(run)
        yield from check_certificates(run)
        yield from check_keys(run)
    yield from _check_settings(run)
    if not (run / LAYOUT_FILE).exists():
        finding = "the run has not begun: it waits for clients"
        yield CheckResult(Outcome.PASS, "ledger", finding)
        return
    for store in cluster_folders(run) or [run]:
        yield from _check_store(run, store)
        if (run / FLOWER_FOLDER).exists():
            settings = _read_settings(run) or {}
            yield from check_cohort_secret(store, settings.get("cohort.fraction", 1.0))


def _check_server(run: Path) -> Iterator[CheckResult]:
    """Report whether a server serves the run, and whether the run has moved or was restored."""
    try:
        check_not_moved(run)
        restored = RestoredRun.read((cluster_folders(run) or [run])[0])
    except SamaraError as error:
        yield CheckResult(Outcome.FAIL, "server", str(error))
        return
    processes = find_superlinks(run / FLOWER_FOLDER)
    if processes and read_connections(run) is None:
        finding = f"its process {processes[0].pid} still runs although `samara server up` has ended"
        remedy = "start `samara server up` again, which ends this process"
        yield CheckResult(Outcome.WARN, "server", finding, remedy)
    else:
        finding = "a server serves this run" if processes else "no server serves this run"
        yield CheckResult(Outcome.PASS, "server", finding)
    if restored:
        finding = f"from the backup of {restored.taken}, which ends at round {restored.round}"
        yield CheckResult(Outcome.PASS, "restored", finding)


def _check_settings(run: Path) -> Iterator[CheckResult]:
    """Check that this version knows all settings, and that this machine has the files they name."""
    settings = _read_settings(run)
    if settings is None:
        remedy = f"copy {SETTINGS_FILE} from a backup, or serve the run with its original settings"
        yield CheckResult(Outcome.FAIL, "settings", f"{SETTINGS_FILE} is damaged", remedy)
        return
    if unknown := unknown_keys(RunConfig, settings):
        finding = f"this version does not know {', '.join(unknown)}: a later version began the run"
        yield CheckResult(Outcome.FAIL, "settings", finding, "update Samara on this machine")
    elif settings:
        yield CheckResult(
            Outcome.PASS, "settings", f"this version knows all {len(settings)} settings"
        )
    for key, value in settings.items():
        try:
            blob = parse_reference(value) if isinstance(value, str) else None
            if blob is None:
                continue
            has_blob = BlobStore().find(blob) is not None
        except BlobError as error:
            yield CheckResult(Outcome.FAIL, "files", f"{key}: {error}", _RESTORE)
            continue
        if has_blob:
            yield CheckResult(Outcome.PASS, "files", f"the file of {key} is on this machine")
        else:
            finding = f"{key}: this machine lacks the file {value}, which clients need"
            remedy = f"name the file again with --set {key}=FILE, or restore a backup"
            yield CheckResult(Outcome.FAIL, "files", finding, remedy)


def _check_store(run: Path, store: Path) -> Iterator[CheckResult]:
    """Check the ledger of a run or cluster, and the files that belong to it."""
    name = "ledger" if store == run else store.name
    try:  # read before the ledger, because rounds may end during the check
        recorded = _last_recorded_round(store)
    except (SamaraError, OSError) as error:
        yield CheckResult(
            Outcome.FAIL, "events", str(error), "delete the damaged line, or restore a backup"
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / LEDGER_FOLDER
        try:
            layout = read_layout(store)
            recovery = copy_ledger(store / LEDGER_FOLDER, copied, layout)
            number, _ = read_latest_state(copied, layout)
            records = list(read_ledger(copied)) if recovery.segments else []
        except (SamaraError, OSError) as error:
            finding = without_remedy(error).replace(f"{copied}", f"{store / LEDGER_FOLDER}")
            remedy = "update Samara" if "update Samara" in finding else _RESTORE
            if isinstance(error.__cause__ or error, PermissionError):
                remedy = "run the command as the owner of the run's folder"
            yield CheckResult(Outcome.FAIL, name, finding, remedy)
            return
    for note in recovery.notes:
        finding = note.replace(f"{copied}", f"{store / LEDGER_FOLDER}")
        yield CheckResult(Outcome.WARN, name, finding, "none needed: `samara server up` repairs it")
    finding = f"{number:,} rounds, {len(records):,} records; replay reproduces the last digest"
    yield CheckResult(Outcome.PASS, name, finding)
    yield from _check_events(store, number, recorded)
    yield from _check_releases(run, store, records)


def _last_recorded_round(store: Path) -> int:
    """Return the last round in the metrics of a run; 0 if there is none."""
    events = read_whole_events(store / METRICS_FILE)
    return max((e.get("round", 0) for e in events if e.get("event") == "round"), default=0)


def _check_events(store: Path, number: int, recorded: int) -> Iterator[CheckResult]:
    """Check that metrics, step sizes and result match the ledger's number of rounds."""
    try:
        steps = {event.get("step") for event in read_whole_events(store / STEP_SIZE_FILE)}
    except (SamaraError, OSError) as error:
        yield CheckResult(Outcome.FAIL, "events", str(error), _RESTORE)
        return
    if recorded > number:
        finding = (
            f"{METRICS_FILE} ends at round {recorded}, but the ledger at {number}: rounds were lost"
        )
        yield CheckResult(Outcome.FAIL, "events", finding, _RESTORE)
    elif missing := sorted(set(range(1, _trained(store, number) + 1)) - steps):
        finding = f"{STEP_SIZE_FILE} lacks step {missing[0]} of {number}"
        yield CheckResult(Outcome.FAIL, "events", finding, _RESTORE)
    else:
        yield CheckResult(Outcome.PASS, "events", f"the last recorded round is {recorded}")
    result = _read_object(store / RESULT_FILE)
    if result is None or (result and result.get("final_round") != number):
        finding = (
            f"{RESULT_FILE} is damaged, or does not belong to the ledger's last round, {number}"
        )
        remedy = f"delete {store / RESULT_FILE}; `samara server up` writes a new one"
        yield CheckResult(Outcome.FAIL, "result", finding, remedy)


def _trained(store: Path, number: int) -> int:
    """Return the number of a ledger's rounds that train the model.

    Rounds after the last planned round, such as the return to the best round, do not count.

    Args:
        store: folder of the run or cluster.
        number: last round in the ledger.
    """
    settings = _read_settings(store) or {}
    try:
        return min(number, RunTerms.of(settings).rounds_of_federation)
    except (SamaraError, KeyError):
        return 0


def _check_releases(run: Path, store: Path, records: list[Record]) -> Iterator[CheckResult]:
    """Check that every round whose reports were used has a release, so that its ε is counted."""
    settings = _read_settings(run) or {}
    try:
        privacy = RunTerms.of(settings).privacy
        releases = parse_releases(read_whole_events(store / RELEASES_FILE), store / RELEASES_FILE)
    except (SamaraError, KeyError, OSError) as error:
        if (store / RELEASES_FILE).exists():
            yield CheckResult(Outcome.FAIL, "privacy", str(error), _RESTORE)
        return
    if privacy is None:
        return
    tokens = {release.token for release in releases}
    uncounted = [
        record.delta.round
        for record in records
        if record.delta.entries and any(record.delta.token) and record.delta.token not in tokens
    ]
    rho = sum(release.rho for release in releases)
    if uncounted:
        finding = (
            f"round {uncounted[0]} is in the ledger but not in {RELEASES_FILE}: more privacy was "
            "spent than is counted"
        )
        remedy = f"do not continue this run; {_RESTORE} --reached {records[-1].delta.round}"
        yield CheckResult(Outcome.FAIL, "privacy", finding, remedy)
        return
    budget = privacy.rounds * privacy.mechanism.rho
    finding = f"{len(releases):,} releases, ε = {epsilon_of(rho, privacy.delta):.3g}"
    if rho > budget * ROUNDING:
        finding += f", more than the run's limit of {privacy.epsilon:.3g}"
        yield CheckResult(Outcome.FAIL, "privacy", finding, "begin another run")
    else:
        finding += f" of {privacy.epsilon:.3g} at δ = {privacy.delta:g}"
        yield CheckResult(Outcome.PASS, "privacy", finding)


def _read_settings(folder: Path) -> dict[str, Any] | None:
    return _read_object(folder / SETTINGS_FILE)


def _read_object(file: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; empty if the file is missing, None if it is damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
