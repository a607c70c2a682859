"""The folder of a client's signed scenarios, and the operator whose signature it accepts.

FOLDER/operator.pem   public key of the first scenario's operator, who must sign all later scenarios
FOLDER/NAME.signed    a signed scenario
FOLDER/refused.json   the number of requests that no scenario allows, and the last such request

If operator.pem is missing, the client has no signed scenario, and the server decides.
"""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from samara.shared.errors import ScenarioError, TrainerError
from samara.shared.storage.files import make_private_folder, write_secret
from samara.shared.storage.kept_file import KeptFile
from samara.shared.terms.signed_scenario import SignedScenario, describe_operator, read_scenario

log = logging.getLogger("samara.client")

SCENARIOS_FOLDER = "scenarios"
"""Name of the folder of signed scenarios, in a client's folder."""
_OPERATOR, _SUFFIX = "operator.pem", ".signed"
_MAX_KEY_BYTES, _MAX_TEXT = 2**12, 1000


@dataclass(frozen=True)
class RefusedRequests:
    """A summary of the requests that no signed scenario allows.

    Attributes:
        count: number of these requests.
        time: time of the last request, UTC, ISO 8601.
        reason: description of the last request and of the signed terms.
    """

    count: int
    time: str
    reason: str


class _RefusedFile(KeptFile[RefusedRequests | None]):
    """The file with the refused requests, for `samara client status`; None if missing."""

    name = "refused.json"
    damaged = "{file}: {problem}; the count of refused requests begins again"
    is_needed = False
    style: ClassVar = {}

    def _put(self, path: Path, data: bytes) -> None:
        write_secret(path, data)

    def _parse(self, value: Any) -> RefusedRequests:
        return RefusedRequests(int(value["count"]), str(value["time"]), str(value["reason"]))


def take_scenario(file: Path, client_folder: Path) -> list[str]:
    """Store a signed scenario in a client's folder, and return its description for the owner.

    Raises:
        ScenarioError: if the file is not a valid signed scenario, or is signed by another operator.
    """
    scenario = read_scenario(file)
    ScenarioFolder(client_folder).add(scenario)
    first, *others = scenario.describe()
    return [f"{file}: {first}", *others]


def describe_scenarios(client_folder: Path) -> list[str]:
    """Return lines that describe a client's signed scenarios and the last refused request.

    Raises:
        ScenarioError: if the scenarios cannot be read.
    """
    folder = ScenarioFolder(client_folder)
    scenarios = folder.read_all()
    if scenarios is None:
        return ["no signed scenario: the server decides on settings and instructions"]
    lines = [] if scenarios else ["every signed scenario was deleted: all requests are refused"]
    for scenario in scenarios:
        first, *others = scenario.describe()
        lines += [f"scenario {scenario.name}, {first}", *(f"  {line}" for line in others)]
    if refused := folder.read_refused():
        lines.append(
            f"{refused.count} requests refused because no signed scenario allows them; the last "
            f"at {refused.time}: the server asks for {refused.reason}"
        )
    return lines


class ScenarioFolder:
    """The signed scenarios of a client.

    Args:
        client_folder: folder of the client.
    """

    def __init__(self, client_folder: Path) -> None:
        self._folder = client_folder / SCENARIOS_FOLDER
        self._refused = _RefusedFile(self._folder)

    def operator(self) -> bytes | None:
        """Public key of the operator, PEM; None if there is no signed scenario.

        Raises:
            ScenarioError: if the file of the key cannot be read.
        """
        file = self._folder / _OPERATOR
        try:
            with file.open("rb") as opened:
                return opened.read(_MAX_KEY_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ScenarioError(
                f"{file}: cannot be read: {error.strerror}; make it readable"
            ) from error

    def add(self, scenario: SignedScenario) -> None:
        """Store a scenario, which the operator of the first scenario must have signed.

        Raises:
            ScenarioError: if another operator has signed the scenario, or the scenario cannot be
                stored.
        """
        operator = self.operator()
        self._check_operator(scenario, operator or scenario.operator)
        try:
            make_private_folder(self._folder)
            for name, content in (
                (_OPERATOR, scenario.operator),
                (scenario.name + _SUFFIX, scenario.encode()),
            ):
                write_secret(self._folder / name, content)
        except OSError as error:
            raise ScenarioError(
                f"{self._folder}: cannot be written: {error.strerror}; make it writable"
            ) from error

    def read_all(self) -> list[SignedScenario] | None:
        """Return the signed scenarios, or None if there were never any and the server decides.

        Raises:
            ScenarioError: if a scenario is damaged or signed by another operator. The client then
                takes part in no run until its owner has corrected the folder.
        """
        operator = self.operator()
        if operator is None:
            return None
        scenarios = [read_scenario(file) for file in sorted(self._folder.glob(f"*{_SUFFIX}"))]
        for scenario in scenarios:
            self._check_operator(scenario, operator)
        return scenarios

    def record_refusal(self, reason: str) -> None:
        """Record the reason of a refusal that no scenario allows the request, for the owner."""
        before, now = self._refused.read(), datetime.now(UTC).isoformat(timespec="seconds")
        count = before.count + 1 if before else 1
        try:
            self._refused.write(RefusedRequests(count, now, reason[:_MAX_TEXT]))
        except TrainerError as error:
            log.warning("%s", error)

    def read_refused(self) -> RefusedRequests | None:
        """Return the summary of refused requests, or None if no request was refused."""
        return self._refused.read()

    def _check_operator(self, scenario: SignedScenario, operator: bytes) -> None:
        if scenario.operator != operator:
            raise ScenarioError(
                f"the scenario is signed by operator {describe_operator(scenario.operator)}, but "
                f"this client accepts only operator {describe_operator(operator)}, who signed its "
                "first scenario. If your operator has confirmed the key of this scenario as their "
                f"new key, delete {self._folder} and give the scenario again"
            )
