"""The data settings of a run: examples, their division among clients, and the owner's limits."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from samara.shared.settings.setting import Section, Text, choice, setting
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.tasks.text_split import SplitRule

PARTITIONS = ("auto", "iid", "dirichlet", "user")
FOLLOWS_SEED = -1
"""Value of ``data.seed`` that stands for the run's seed."""


class DataSettings(Section):
    """The examples and their division among clients."""

    path: Text = setting(
        EMBEDDED_DATA,
        "a file, a folder, a data set name on the hub, or `messages` for generated messages of as "
        "many writers as clients",
        repetition=True,
    )
    partition: Annotated[str, choice("partition", PARTITIONS)] = setting(
        "auto",
        "partition of the examples: `iid`, `dirichlet` (by label), `user`, or a registered "
        "partition; `auto` is `user` if the examples have users, otherwise `iid`",
    )
    clients: int = setting(8, "number of clients", ge=1, le=100_000)
    alpha: float = setting(
        0.5,
        "concentration of the Dirichlet partition: the smaller, the more the clients' labels "
        "differ",
        gt=0,
    )
    limit: int = setting(
        0, "maximum number of training examples of all clients together; 0 means all", ge=0
    )
    # without a run, data.seed can still be open: then 0
    seed: Annotated[int, AfterValidator(lambda seed: max(seed, 0))] = setting(
        FOLLOWS_SEED,
        "seed of splits, limit, partition and generated messages; −1 means the run's `seed`",
        validate_default=True,
        ge=FOLLOWS_SEED,
        lt=2**63,
    )
    split: SplitRule = setting(
        "random",
        "how validation and test examples are cut from a user's rows: `random`, by `data.seed`; "
        "`time`, the newest rows, by the column `time`; or `text`, by a hash of the text and "
        "`data.seed`. Live clients take `text` and its seed from the run",
        before="random",
        page="guides/own-data.md",
    )
    scalar_limit: float = setting(
        0.0,
        "maximum number of scalars (projected gradients, losses, curvatures) that a client sends "
        "about one set of examples, per trained number and over all its runs; further "
        "instructions are refused. 0 means no limit",
        identity=False,
        page="guides/privacy.md",
        ge=0,
    )
    least_batch: int = setting(
        1,
        "minimum number of a client's examples that a step may use; smaller batches are refused. "
        "1 means no limit; `samara client up` and `samara phone up` set 2",
        identity=False,
        page="guides/privacy.md",
        ge=1,
    )
    scalars_per_example: float = setting(
        0.0,
        "maximum number of projected gradients that a client sends in a round, per example of the "
        "smallest batch; further instructions are refused. 0 means no limit",
        identity=False,
        page="guides/privacy.md",
        ge=0,
    )
    epsilon_limit: float = setting(
        0.0,
        "maximum ε, at δ = 10⁻⁵, of all reports about a client's examples, over all its runs. A "
        "round that would exceed it, or has no `privacy.mode`, is refused. 0 means no limit",
        identity=False,
        page="guides/differential-privacy.md",
        ge=0,
        le=1e6,
    )
    watch: bool = setting(
        False,
        "re-read the file or folder between rounds, so that examples may be added and deleted "
        "while a live client runs. An example's split then depends only on its content and "
        "`data.seed`",
        identity=False,
        page="guides/growing-data.md",
    )
    keep: int = setting(
        0,
        "maximum number of examples, added in watched data or by `samara client learn`, that a "
        "live client keeps; the oldest are dropped. 0 keeps all",
        identity=False,
        page="guides/growing-data.md",
        ge=0,
    )
    keep_days: float = setting(
        0.0,
        "days after which a live client stops using an added example; 0 means never",
        identity=False,
        page="guides/growing-data.md",
        ge=0,
        le=100_000,
    )

    @property
    def has_answer_limits(self) -> bool:
        """Return whether the data's owner limits a client's reports and evaluations."""
        limits = self.scalar_limit, self.scalars_per_example, self.epsilon_limit
        return any(limits) or self.least_batch > 1


def with_drawn_split(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key, with the run's seed as the value of an unset `data.seed`."""
    if flat.get("data.seed", FOLLOWS_SEED) != FOLLOWS_SEED:
        return dict(flat)
    seed = flat.get("seed", 0)
    # the run's own check refuses a seed of another type
    return {**flat, "data.seed": seed if type(seed) is int else 0}
