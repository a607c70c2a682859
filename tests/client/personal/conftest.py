"""Fixtures of the tests of personal models."""

import json
from pathlib import Path

import pytest
from federations import Settings


@pytest.fixture
def writers(settings: Settings, tmp_path: Path) -> Settings:
    """Settings of three users with own words, each of whom always writes the same phrase."""
    phrases = ("the film was very good", "the meal was cold !", "a rude day and a bad walk")
    rows = [
        {"user": f"{user}", "text": f"{number} {phrase} {number % 3}"}
        for user, phrase in enumerate(phrases)
        for number in range(24)
    ]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"task": "texts", "data.path": str(file), "data.partition": "user"}
    more = {"rounds": 1, "personal.rounds": 1, "personal.own-words": True}
    return settings | own | more | {"adapter.layers": "top:2"}
