"""Alert rules and dashboard name only existing metrics; Prometheus can read the rules."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers import ROOT

from samara.server.watch.dashboard import TOKEN_FILE
from samara.server.watch.metrics import METRICS

FOLDER = ROOT / "examples" / "monitoring"
LABELS = {metric.name: {"run", *metric.labels} for metric in METRICS}


@pytest.mark.parametrize("name", ["alerts.yml", "grafana.json"])
def test_every_metric_and_label_exists(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    used = set(re.findall(r"\bsamara_[a-z_]+", text))
    assert used
    assert used <= LABELS.keys()
    named = set(re.findall(r"\{\{\s*(?:\$labels\.)?([a-z]+)\s*\}\}", text))
    assert named <= set().union(*LABELS.values()) | {"instance"}


def test_the_dashboard_has_one_query_per_line_and_no_fixed_source() -> None:
    board = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == "${source}"
        assert all('run=~"$run"' in target["expr"] for target in panel["targets"])


def test_the_token_has_the_name_of_the_runs_file() -> None:
    text = (FOLDER / "prometheus.yml").read_text(encoding="utf-8")
    assert f"credentials_file: {TOKEN_FILE} " in text


def test_prometheus_reads_configuration_and_rules(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool (Debian: prometheus)")
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / TOKEN_FILE).write_text("a token of some length\n")
    command = [promtool, "check", "config", "prometheus.yml"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
