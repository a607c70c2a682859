"""kNN-LM and own words lower the loss of a person who repeats a phrase."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy.nearest_states import main, votes
from benchmarks.accuracy.nearest_states import read as read_text
from samara.shared.model.loading import load_base_model
from samara.shared.model.model_folder import EMBEDDED_MODEL


def test_the_nearest_states_vote_for_the_tokens_that_followed_them() -> None:
    base = load_base_model(EMBEDDED_MODEL)
    known, other = (read_text(base, text) for text in ("the film was long", "we ate soup"))
    np.testing.assert_allclose(votes([known, other], known, 1, 0.1), 1)
    assert votes([other], known, 1, 0.1)[0] == 0  # the token is not in the other text


def test_both_save_bits_where_phrases_are_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts.jsonl"
    rows = [
        {"user": user, "text": f"{user} will write of the {thing} once more"}
        for user in ("ann", "bob")
        for thing in ("tea", "cat") * 10
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    main([str(file), "--model", EMBEDDED_MODEL])
    people, *lines = capsys.readouterr().out.splitlines()
    assert people == "2 people"
    by_method = {}
    for line in lines:
        name, _, rest = line.partition(": ")
        by_method[name] = float(rest.split()[0])
    assert by_method["kNN-LM"] < by_method["model"] / 2
    assert by_method["own words"] < by_method["model"] / 2
