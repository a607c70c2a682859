"""The section of a run's settings about data: examples, their division, and an owner's limits."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from samara.shared.settings import Section, Text, choice, setting

EMBEDDED_DATA = "messages"
"""The value of ``data.path`` that means generated messages, and the task that reads them."""
PARTITIONS = ("auto", "iid", "dirichlet", "user")
SplitRule = Literal["random", "time", "text"]
"""The ways to cut missing splits from the training rows."""
FOLLOWS_SEED = -1
"""The value of ``data.seed`` that leaves it open: the seed of the run."""


class DataSettings(Section):
    """The examples, and how they are dealt to clients."""

    path: Text = setting(
        EMBEDDED_DATA,
        "a file, a folder, a data set name on the hub, or `messages` for generated messages of as "
        "many writers as clients",
        repetition=True,
    )
    partition: Annotated[str, choice("partition", PARTITIONS)] = setting(
        "auto",
        "division among clients: `iid`, `dirichlet` (by label), `user`, or a registered one; "
        "`auto` is `user` if the examples have users, otherwise `iid`",
    )
    clients: int = setting(8, "number of clients", ge=1, le=100_000)
    alpha: float = setting(
        0.5,
        "concentration of the Dirichlet partition: the smaller, the more the clients' labels "
        "differ",
        gt=0,
    )
    limit: int = setting(0, "most training examples of all clients together; 0 is all", ge=0)
    seed: Annotated[int, AfterValidator(lambda seed: max(seed, 0))] = setting(  # open without a run
        FOLLOWS_SEED,
        "seed of splits, limit, partition and generated messages; −1 is the run's `seed`, so that "
        "other seeds draw other splits, and a number keeps them",
        validate_default=True,
        ge=FOLLOWS_SEED,
        lt=2**63,
    )
    split: SplitRule = setting(
        "random",
        "validation and test examples that are cut from a user's rows: `random`, by `data.seed`; "
        "`time`, the newest as test and those before them as validation, by the rows' column "
        "`time` (seconds since 1970, or a date); or `text`, by a hash of the text and `data.seed`, "
        "so that no client is tested on a text that another trains on. Live clients take the last "
        "one from the run",
        before="random",
        page="guides/own-data.md",
    )
    scalar_limit: float = setting(
        0.0,
        "largest number of scalars (projected gradients, losses, curvatures) that a client sends "
        "about one set of examples, per trained number and over all its runs; an instruction that "
        "would exceed it is refused. 0 is no limit",
        identity=False,
        page="guides/privacy.md",
        ge=0,
    )
    least_batch: int = setting(
        1,
        "fewest of a client's examples that a step may use; an instruction with smaller batches is "
        "refused. 1 is no limit; `samara client up` and `samara phone up` set 2",
        identity=False,
        page="guides/privacy.md",
        ge=1,
    )
    scalars_per_example: float = setting(
        0.0,
        "most projected gradients that a client sends in a round, per example of the smallest "
        "batch; an instruction that would exceed it is refused. 0 is no limit",
        identity=False,
        page="guides/privacy.md",
        ge=0,
    )
    epsilon_limit: float = setting(
        0.0,
        "largest ε, at δ = 10⁻⁵, of all reports that a client sends about its examples, over all "
        "its runs; a round beyond it, and any round without a `privacy.mode`, is refused. 0 is no "
        "limit",
        identity=False,
        page="guides/differential-privacy.md",
        ge=0,
        le=1e6,
    )
    watch: bool = setting(
        False,
        "re-read the file or folder between rounds: examples may be added and deleted while a "
        "live client runs. Each example's split is then a function of its own content and "
        "`data.seed`",
        identity=False,
        page="guides/growing-data.md",
    )
    keep: int = setting(
        0,
        "most examples that a live client keeps of those that were added, in watched data or by "
        "`samara client learn`: the newest. 0 keeps all",
        identity=False,
        page="guides/growing-data.md",
        ge=0,
    )
    keep_days: float = setting(
        0.0,
        "days after which a live client uses an added example no more. 0 is never",
        identity=False,
        page="guides/growing-data.md",
        ge=0,
        le=100_000,
    )

    @property
    def has_answer_limits(self) -> bool:
        """Return whether a client's answers are limited."""
        limits = self.scalar_limit, self.scalars_per_example, self.epsilon_limit
        return any(limits) or self.least_batch > 1


def with_drawn_split(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key in which a `data.seed` that was left open is the run's seed."""
    if flat.get("data.seed", FOLLOWS_SEED) != FOLLOWS_SEED:
        return dict(flat)
    seed = flat.get("seed", 0)
    return {**flat, "data.seed": seed if type(seed) is int else 0}  # which is refused as the run's
