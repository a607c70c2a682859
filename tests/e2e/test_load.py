"""The load script with few clients: a real server, a gateway and clients without a model."""

import os

import pytest

from benchmarks.faults.network import network
from benchmarks.scale.load import Load, measured

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces take root")
def test_light_clients_report_and_every_digest_is_proven(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with network(1) as net:
        load = Load(tmp_path_factory.mktemp("w"), 40, 0.25, 6, net)
        with load.live:
            try:
                row = measured(load, 6, 0.25)
            finally:
                load.end()
    assert row["rounds, all digests agree"] == 6
    assert row["reports of a round, median"] == 10
    parts = row["seconds by part, median"]
    assert {"signature checks", "fsync", "replay", "aggregation", "draw cohort"} <= parts.keys()
    assert {"ServerApp", "SuperLink", "gateways"} <= row["unique MiB"].keys()
    assert all(n > 0 for n in row["bytes of a round on the wire"].values())
