"""Scenario files by path or, of those that come with Samara, by name."""

from importlib import resources
from pathlib import Path

from shared.errors import ConfigError


def shipped_scenarios() -> dict[str, Path]:
    """Return the files of the shipped scenarios by name."""
    folder = Path(str(resources.files("simulations"))) / "scenarios"
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def scenario_file(scenario: Path | None) -> Path:
    """Return the path of a scenario, which may be the name of a shipped one.

    Raises:
        ConfigError: if there is no such scenario.
    """
    if scenario is not None and scenario.exists():
        return scenario
    shipped = shipped_scenarios()
    if (file := shipped.get(str(scenario))) is not None:
        return file
    what = f"{scenario}: neither a scenario file nor a shipped scenario; " if scenario else ""
    raise ConfigError(
        f"{what}give a TOML file or one of {', '.join(shipped)}; samara simulate --list shows what "
        "they run"
    )
