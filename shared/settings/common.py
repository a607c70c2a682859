"""Settings common to federated runs and `samara tune`, each declared once.

If a setting has another default, range or meaning in `samara tune`, its declaration there states
the reason (`apart`).
"""

from typing import Annotated

from pydantic import AfterValidator

from samara.shared.settings.sections import AdapterSettings, ModelSettings
from samara.shared.settings.setting import Text, setting, term
from samara.shared.tasks.catalog import stored_task
from samara.shared.tasks.kinds import AUTO_FORM
from samara.shared.tasks.messages import EMBEDDED_DATA

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
    "form of a classification's or choice's prompt for a causal LM: `plain`, text with the "
    "special tokens that the tokenizer adds; `chat`, a user's message in the model's chat "
    "template; or `auto`, the task's own `form`. For a task without a form, `samara simulate` "
    "chooses if the model has a chat template; otherwise the text begins with the BOS token. "
    "Live clients use their task's form",
    before=AUTO_FORM,
    page="guides/language.md#labels-from-an-instruct-model",
)
OF_SIMULATIONS = frozenset({"form"})
"""Settings that only simulations have.

A server does not send these settings. Clients of earlier versions refuse unknown settings, and a
live run does not use these.
"""
OUT = setting("", "folder of the run; empty is `runs/<task>-<run id>`", identity=False)
MODEL = setting(ModelSettings(), "Model", owner="device")
ADAPTER = setting(AdapterSettings(), "Adapter")
