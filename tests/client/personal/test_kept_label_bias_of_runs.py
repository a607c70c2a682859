"""After a change of base model, private rounds start from the client's earlier label bias."""

import json
from pathlib import Path

import numpy as np
import pytest
from exported import CLIENT, other_base, take_part
from federations import Settings

from samara.client.personal.kept_label_bias import LABEL_BIAS_FILE
from samara.client.personal.private_rounds import personal_ledger
from samara.client.protocol.joined_runs import run_folders
from samara.shared.model.lora_fa import LABEL_BIAS
from samara.shared.protocol.ledger.latest_state import read_latest_state
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.round_delta import Group


@pytest.fixture
def one_sided(settings: Settings, data_file: Path, tmp_path: Path) -> Settings:
    """The settings of an owner whose examples almost all have one label."""
    rows = [json.loads(line) for line in data_file.read_text().splitlines()]
    kept = [row for row in rows if row["label"] or row["user"] == "user0"]
    file = tmp_path / "one sided.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in kept))
    return settings | {"data.path": str(file)}


def test_a_new_base_model_begins_with_the_label_bias_of_the_run_before(
    one_sided: Settings, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("l")
    changes = {
        **{"adapter__label_bias": True, "rounds": 1, "learning_rate": 1e-9},
        **{"personal__learning_rate": 0.5, "personal__rounds": 4},
    }
    layout = take_part(one_sided, home, tmp_path / "old run", **changes).layout
    (old,) = run_folders(home)
    numbers = layout.tensor_slice(LABEL_BIAS)[0]
    owns = [old / "clients" / str(CLIENT)]
    first, learned = read_latest_state(personal_ledger(owns[0]), layout)
    assert first == 4
    assert learned[numbers].any()
    kept = json.loads((owns[0] / LABEL_BIAS_FILE).read_text())
    assert kept["labels"] == ["0", "1"]
    assert kept["values"] == learned[numbers].tolist()
    assert kept["began_with"] == []
    assert all(record.delta.groups for record in read_ledger(personal_ledger(owns[0])))

    base = other_base(tmp_path / "base", Path(one_sided["model.path"]))
    again = one_sided | {"model.path": str(base)}
    assert take_part(again, home, tmp_path / "new run", **changes).layout.hash == layout.hash
    new = run_folders(home)[0]
    owns.append(new / "clients" / str(CLIENT))
    records = [record.delta for record in read_ledger(personal_ledger(owns[1]))]
    (begun,), *rounds = (delta.entries for delta in records)
    assert not isinstance(begun, Group)
    assert (begun.first, begun.values.tolist()) == (numbers.start, kept["values"])
    assert len(rounds) == 4
    assert all(isinstance(entry, Group) for entries in rounds for entry in entries)
    kept = json.loads((owns[1] / LABEL_BIAS_FILE).read_text())
    assert kept["began_with"] == learned[numbers].tolist()
    final = read_latest_state(personal_ledger(owns[1]), layout)[1]
    np.testing.assert_array_equal(final[numbers], kept["values"])
