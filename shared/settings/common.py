"""Settings common to federated runs and `samara tune`, each declared once.

A setting that has another default, range or meaning in `samara tune` is declared again there, with
the reason in `apart`.
"""

from typing import Annotated

from pydantic import AfterValidator

from samara.shared.settings.sections import AdapterSettings, ModelSettings
from samara.shared.settings.setting import Text, setting, term
from samara.shared.tasks.catalog import stored_task
from samara.shared.tasks.kinds import AUTO_FORM
from samara.shared.tasks.messages import EMBEDDED_DATA

MOST_THREADS = 1024
"""Largest number of CPU threads; torch crashes with far more."""
PASS_EXAMPLES = 8
"""Largest number of examples in a forward pass, unless a memory budget determines it."""
TRUNK_CACHE_BYTES = 256 * 2**20
"""Size in bytes of the cache for outputs of the layers below the adapters, if no memory budget is
set."""

TaskName = Annotated[Text, AfterValidator(lambda name: stored_task(name) or name)]
"""The name of a shipped or registered task, or the path of a task file."""
SEED = term(
    "seed",
    "seed of all random choices: directions, batches, cohorts, splits and samples of the data",
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
FORM = setting(
    AUTO_FORM,
    "form of a classification's or choice's prompt for a causal LM: `plain`; `chat`, the model's "
    "chat template; or `auto`, the task's own `form`",
    before=AUTO_FORM,
    page="guides/language.md#labels-from-an-instruct-model",
)
OF_SIMULATIONS = frozenset({"form"})
"""Settings that only simulations use.

A server does not send them, because clients of earlier versions would refuse unknown settings.
"""
OUT = setting("", "folder of the run; empty is `runs/<task>-<run id>`", identity=False)
MODEL = setting(ModelSettings(), "Model", owner="device")
ADAPTER = setting(AdapterSettings(), "Adapter")
