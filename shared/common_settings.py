"""The settings that a run of a federation and `samara tune` have in common, each declared once.

Where `samara tune` has a default, a range or a meaning of its own for a key of a run, its
declaration says why (`apart`).
"""

from samara.shared.data_settings import EMBEDDED_DATA
from samara.shared.sections import AdapterSettings, ModelSettings
from samara.shared.settings import setting, term
from samara.shared.tasks.kinds import AUTO_FORM

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
FORM = setting(
    AUTO_FORM,
    "how a causal LM is asked a classification or a choice: `plain`, a text that begins as the "
    "tokenizer begins one; `chat`, a user's message in the model's own chat template; or `auto` "
    "for the task's own `form`. Where that is open too, `samara simulate` chooses for a model with "
    "a chat template, and any other text begins with the BOS token. Live clients have what their "
    "task says",
    before=AUTO_FORM,
    page="guides/language.md#labels-from-an-instruct-model",
)
OF_SIMULATIONS = frozenset({"form"})
"""Settings of simulations alone. A server does not send them: to clients of earlier versions, which
refuse what they do not know, a run without them is the same."""
OUT = setting("", "folder of the run; empty is `runs/<task>-<run id>`", identity=False)
MODEL = setting(ModelSettings(), "Model", owner="device")
ADAPTER = setting(AdapterSettings(), "Adapter")
