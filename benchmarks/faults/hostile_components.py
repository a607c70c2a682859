"""Accuracy of readouts when one of eight clients sends false reports.

    PYTHONPATH=tests python -m benchmarks.faults.hostile_components --data SOURCES --model MINILM \\
        --out FOLDER [--sets demo,messages] [--forms components,central] [--seeds 0,1,2]

The runs are those of `samara simulate` with default settings, and with projected gradients
(`central`). `demo` has the writers and the model of `samara demo`, and `messages` the same writers
with MINILM. Other sets have 1,600 examples. The hostile client is the last one to answer. The
attack *inside* also knows the other reports of the round. FOLDER/rows.jsonl has a line for each
run, and the same command continues with it. The table has means over seeds.
"""

import logging
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from false_reports import FORGERIES, HostileApp
from flwr.app import ConfigRecord, Context, Message

from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.accuracy.rows import Rows
from benchmarks.arguments import arguments
from samara.client.app import app as client_app
from samara.server.app import serve
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.wire import RECORD, Kind, kind_of
from samara.shared.results.result import read_result
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import InProcessGrid

CLIENTS = 8
ATTACKS = ["none", *FORGERIES]


class LastIsHostile(HostileApp):
    """Clients of which the last one forges its reports, and knows those of the others."""

    def __init__(self, attack: str) -> None:
        super().__init__([], next(iter(FORGERIES)))
        self._attack, self._reports = attack, dict[str, list[Report]]()

    def __call__(self, message: Message, context: Context) -> Message:
        """Return a client's reply."""
        reply = client_app(message, context)
        frame = reply.content.config_records[RECORD]["frame"]
        assert isinstance(frame, bytes), "a reply has one frame"
        if kind_of(frame) is not Kind.REPORT or self._attack == "none":
            return reply
        others = self._reports.setdefault(number := message.metadata.group_id, [])
        if int(context.node_config["partition-id"]) < CLIENTS - 1:
            others.append(Report.decode(frame))
            return reply
        assert len(others) == CLIENTS - 1, "the hostile client answers last"
        forged = FORGERIES[self._attack](Report.decode(frame), others, int(number))
        reply.content[RECORD] = ConfigRecord({"frame": forged.encode()})
        return reply


def main() -> None:
    given = arguments(
        __doc__,
        data=Path,
        model=str,
        out=Path,
        sets=["demo", "messages"],
        forms=["components", "central"],
        attacks=";".join(ATTACKS),
        seeds=[0, 1, 2],
    )
    logging.disable(logging.INFO)
    rows = Rows(given.out / "rows.jsonl")
    attacks = given.attacks.split(";")
    for seed, name, form, attack in product(given.seeds, given.sets, given.forms, attacks):
        if rows.find(data=name, form=form, attack=attack, seed=seed):
            continue
        if form == "components" and "curvature" in attack:
            continue  # reports of components have no curvature
        writers = name in ("demo", "messages")
        division: dict[str, Any] = {
            "data.partition": "iid" if name == "popquorn2" else "dirichlet",
            "data.alpha": 5.0,
            "data.limit": 1600,
        }
        settings: dict[str, Any] = {
            **DATA_SETS["messages" if writers else name].prepare(given.data, given.out / "data"),
            **({} if writers else division),
            "model.path": "embedded" if name == "demo" else given.model,
            "data.clients": CLIENTS,
            "cohort.available": CLIENTS,
            "data.seed": seed if writers else 0,
            "seed": seed,
            "differences": form,
            "personal.rounds": 0,
            "threads": 1,
            "trunk-cache-folder": str(given.out / "representations"),
            "out": str(given.out / "run"),
        }
        config = RunConfig.of(settings, "attacks")
        shutil.rmtree(config.out, ignore_errors=True)
        grid = InProcessGrid(LastIsHostile(attack), CLIENTS, config.flat())
        result = read_result(serve(config, grid))
        tests = [event for event in result["evaluations"] if event["split"] == "test"]
        ends = [100 * tests[index]["columns"]["global"]["accuracy"] for index in (0, -1)]
        key = {"data": name, "form": form, "attack": attack, "seed": seed}
        rows.add(key | {"before": ends[0], "after": ends[1]})
    for name, form in product(given.sets, given.forms):
        for attack in attacks:
            own = [r for r in rows if (r["data"], r["form"], r["attack"]) == (name, form, attack)]
            if own:
                before, after = (np.mean([row[end] for row in own]) for end in ("before", "after"))
                ends = ", ".join(f"{row['after']:.1f}" for row in own)
                print(f"{name}, {form}, {attack}: {before:.1f} -> {after:.1f} ({ends})")


if __name__ == "__main__":
    main()
