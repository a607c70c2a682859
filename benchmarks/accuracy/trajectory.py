"""The size of a trained model as a list of scalars, and the time to rebuild it.

    samara tune --optimizer mezo --steps 2000 --set validate-every=500 --out RUN
    python -m benchmarks.accuracy.trajectory RUN

Rebuilds the best state of a finished zeroth-order run from the base model and the run's trajectory,
and compares its digest with the one that the run noted.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

from samara.client.tuning.run import read_result
from samara.client.tuning.run_space import make_space
from samara.client.tuning.settings import TuneSettings
from samara.client.tuning.trajectory import read_trajectory
from samara.client.tuning.tuning_setup import TuningSetup
from samara.client.tuning.zeroth_order import TRAJECTORY_FILE, update_rule
from samara.shared.settings import with_current_keys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="folder of a finished zeroth-order run")
    run = parser.parse_args().run
    result = read_result(run)
    setup = TuningSetup(
        TuneSettings.of(with_current_keys(TuneSettings, result["config"]), str(run))
    )
    space, rule = make_space(setup), update_rule(setup.settings)
    file = run / TRAJECTORY_FILE
    trajectory = read_trajectory(file)
    size, steps = file.stat().st_size, len(trajectory.records)
    print(f"{steps} steps: {size:,} bytes, {size / steps:.1f} a step; d = {space.size:,}")
    best = replace(trajectory, records=trajectory.records[: result["best_step"]])
    begun = time.perf_counter()
    best.rebuild(space, rule, setup.base.model_id, hold_moments=True)
    seconds = time.perf_counter() - begun
    equal = space.digest().hex() == result["digest"]
    print(f"rebuilt after step {result['best_step']} in {seconds:.1f} s", end=", ")
    print(f"{result['seconds']:.1f} s in training; the same bits: {'yes' if equal else 'NO'}")


if __name__ == "__main__":
    main()
