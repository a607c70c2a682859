"""The settings of private rounds."""

from samara.shared.sections import LearningRate
from samara.shared.settings import Section, Text, term


class PersonalSettings(Section):
    """The private rounds that a client takes; they never leave it."""

    rounds: int = term(
        "personal.rounds",
        "private rounds that each client takes after the last round, and whenever `personal.when` "
        "asks for them; 0 is no personal model",
        5,
    )
    when: Text = term(
        "personal.when",
        "when a client takes its private rounds: `end`, after the last round; `every N rounds` of "
        "the federation that the client has seen, such as `every 5 rounds`; `on-data`, as soon as "
        "its training examples are others than those of its latest private rounds; `always`, after "
        "every round and on new examples. All of them also after the last round",
        owner="either",
        read_by=("finetune", "ditto", "mixture", "partial", "readout"),
        before="end",
        page="guides/personal.md#when-the-private-rounds-are-taken",
    )
    retrain: bool = term(
        "personal.retrain",
        "whether private rounds that are taken again begin without the earlier ones, and do not "
        "go on from them",
        owner="either",
        read_by=("finetune", "ditto", "mixture", "partial"),
        before=False,
        page="guides/personal.md#when-the-private-rounds-are-taken",
    )
    learning_rate: LearningRate = term(
        "personal.learning-rate",
        "η of the private rounds, or `auto`",
        read_by=("local", "finetune", "ditto", "mixture", "partial"),
    )
    pull: float = term(
        "personal.pull",
        "share by which the personal model moves towards the global one after each private round, "
        "rounded to a power of 2; η·λ·K in the paper's terms",
        read_by=("ditto",),
    )
    part: Text = term(
        "personal.part",
        "private tensors: comma-separated names, with `*` for any letters, or groups such as "
        "`label bias`",
        read_by=("partial",),
        min_length=1,
    )
