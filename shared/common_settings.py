"""The settings that a run of a federation and `samara tune` have in common, each declared once.

Where `samara tune` has a default, a range or a meaning of its own for a key of a run, its
declaration says why (`apart`).
"""

from samara.shared.data_settings import EMBEDDED_DATA
from samara.shared.sections import AdapterSettings, ModelSettings
from samara.shared.settings import setting, term

PASS_EXAMPLES = 8
"""The most examples of a forward pass, where no bytes say how many."""
TRUNK_CACHE_BYTES = 256 * 2**20
"""Bytes for cached outputs of the layers below the adapters, where no bytes of a pass are set."""

SEED = term(
    "seed",
    "seed of all that is drawn: directions, batches, cohorts, splits and samples of the data",
    0,
    repetition=True,
)
TASK = setting(
    EMBEDDED_DATA,
    "a shipped or registered task, or the path of a task file",
    owner="device",
    page="reference/tasks.md",
    min_length=1,
)
OUT = setting("", "folder of the run; empty is `runs/<task>-<run id>`", identity=False)
MODEL = setting(ModelSettings(), "Model", owner="device")
ADAPTER = setting(AdapterSettings(), "Adapter")
