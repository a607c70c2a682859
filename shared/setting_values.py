"""Values of settings that others sent, checked one by one."""

from collections.abc import Mapping
from sys import float_info
from typing import Any

from samara.shared.errors import ScenarioError


def read_text(settings: Mapping[str, Any], key: str) -> str:
    """Return a setting that is a text.

    Raises:
        ScenarioError: if it is missing, or something else.
    """
    value = settings.get(key)
    if type(value) is not str:
        raise ScenarioError(f"{key}: {value!r} is no text")
    return value


def read_flag(settings: Mapping[str, Any], key: str) -> bool:
    """Return a setting that is true or false.

    Raises:
        ScenarioError: if it is missing, or something else.
    """
    value = settings.get(key)
    if type(value) is not bool:
        raise ScenarioError(f"{key}: {value!r} is neither true nor false")
    return value


def read_whole(settings: Mapping[str, Any], key: str, least: int = 0, most: int = 2**32 - 1) -> int:
    """Return a setting that is a whole number in a range.

    Raises:
        ScenarioError: if it is missing, or something else.
    """
    value = settings.get(key)
    if type(value) is not int or not least <= value <= most:
        raise ScenarioError(f"{key}: {value!r} is no whole number from {least} to {most}")
    return value


def read_number(settings: Mapping[str, Any], key: str, most: float = float_info.max) -> float:
    """Return a setting that is a finite number from 0 on, and no larger than the most.

    Raises:
        ScenarioError: if it is missing, or something else.
    """
    value = settings.get(key)
    if type(value) is int:
        value = float(value)
    if type(value) is not float or not 0 <= value <= most:
        end = "on" if most == float_info.max else f"to {most:g}"
        raise ScenarioError(f"{key}: {value!r} is no number from 0 {end}")
    return value
