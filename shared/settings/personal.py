"""The settings of private rounds."""

from typing import Literal

from samara.shared.settings.sections import LearningRate
from samara.shared.settings.setting import Section, Text, term


class PersonalSettings(Section):
    """A client's private rounds; their results never leave the client."""

    rounds: int = term(
        "personal.rounds",
        "private rounds that each client runs after the last round, and whenever `personal.when` "
        "requires them; 0 means no personal model",
        5,
    )
    when: Text = term(
        "personal.when",
        "when a client runs its private rounds: `end`, after the last round; `every N rounds`, "
        "such as `every 5 rounds`; `on-data`, when its training examples have changed; or `always`",
        owner="either",
        read_by=("finetune", "ditto", "mixture", "partial", "readout"),
        before="end",
        page="guides/personal.md#when-private-rounds-run",
    )
    retrain: bool = term(
        "personal.retrain",
        "whether repeated private rounds start over, instead of continuing from the earlier ones",
        owner="either",
        read_by=("finetune", "ditto", "mixture", "partial"),
        before=False,
        page="guides/personal.md#when-private-rounds-run",
    )
    prior: Literal["own", "common"] = term(
        "personal.prior",
        "who chooses the standard deviation of a private intercept: each client by its own "
        "examples (`own`), or all training clients together (`common`)",
        read_by=("readout",),
        before="own",
        page="concepts/personal.md#a-common-standard-deviation",
    )
    own_words: bool = term(
        "personal.own-words",
        "whether each client mixes the words of its own texts into its personal model, as far as "
        "that helps on its validation texts. Only for tasks of texts",
        read_by=("local", "finetune", "ditto", "mixture", "partial"),
        before=False,
        page="guides/language.md#own-words",
    )
    learning_rate: LearningRate = term(
        "personal.learning-rate",
        "η of the private rounds, or `auto`",
        read_by=("local", "finetune", "ditto", "mixture", "partial"),
    )
    pull: float = term(
        "personal.pull",
        "share by which the personal model moves towards the global model after each private "
        "round, rounded to a power of 2; this share is η·λ·K in the notation of Ditto",
        read_by=("ditto",),
    )
    part: Text = term(
        "personal.part",
        "private tensors: comma-separated names, with `*` for any letters, or groups such as "
        "`label bias`",
        read_by=("partial",),
        min_length=1,
    )
