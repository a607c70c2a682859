"""The feature matrix: the supported combinations of a run's features, such as method and engine.

`DIMENSIONS` and `EXCLUSIONS` define it completely. Every combination that is not excluded is
supported, and every pair of values is tested. An excluded combination is refused as soon as its
values are known: when the configuration is read, when a simulation, server or gateway begins, or
when the task is loaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samara.shared.errors import ConfigError

if TYPE_CHECKING:
    from samara.shared.tasks.kinds import Task

Combination = Mapping[str, str]
"""The values of a run by dimension, such as ``{"method": "ditto"}``. Unknown values are missing."""

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "method": ("finetune", "local", "global", "ditto", "mixture", "partial", "cluster", "readout"),
    "engine": ("in-process", "flower", "fleet"),
    "clients": ("simulated", "emulated", "board", "phone"),
    "seed-policy": ("independent", "shared", "pool"),
    "task": ("classification", "listed choice", "open choice", "generation"),
    "cohorts": ("sampled", "recorded"),
    "late reports": ("refused", "counted"),
    "aggregation": ("reports", "mean", "coordinates"),
    "label bias": ("none", "trained"),
    "adapter": ("inner", "readout", "both"),
    "gradients": ("differences", "exact"),
    "reports": ("gradients", "components"),
    "basis": ("none", "informed"),
    "scalar limit": ("none", "set"),
    "start": ("none", "given"),
    "private rounds": ("at the end", "earlier"),
    "privacy": ("none", "central", "local", "distributed", "measured", "masked"),
    "joint clip": ("fixed", "adaptive"),
    "buckets": ("none", "drawn"),
}
"""The dimensions of the matrix, each with all its values. Some values need an explanation:

- ``engine``: ``in-process`` and ``fleet`` are engines of `samara simulate`. ``flower`` is Flower's
  simulation or a live SuperLink.
- ``clients``: ``emulated`` clients are the devices in ``fleet.devices``.
- ``task``: a ``listed choice`` has its candidates in the task, an ``open choice`` in each row.
- ``aggregation``: ``mean`` is the plain mean, ``reports`` are rules that weigh whole reports, and
  ``coordinates`` are medians and trimmed means of each coordinate.
- ``basis``: ``informed`` means that `adapter.basis` is set.
- ``private rounds``: ``earlier`` is every `personal.when` except ``end``.
- ``privacy``: a `privacy.mode`; ``measured`` if `privacy.evaluation` is ``exact``; ``masked`` with
  `privacy.secure-aggregation`.
- ``joint clip``: ``adaptive`` means that `privacy.adaptive-clip` is set.
- ``buckets``: ``drawn`` means that `privacy.bucket` is set.
- ``reports``: ``components`` if `differences` is ``components``.
- ``adapter``: ``inner`` is LoRA-FA inside the model, and ``both`` adds a readout.
"""


@dataclass(frozen=True)
class Exclusion:
    """A combination that is not supported.

    Attributes:
        values: values by dimension. A combination is excluded if it has one of the values in each
            of these dimensions.
        reason: reason for the exclusion, and the settings to change, for users.
    """

    values: Mapping[str, tuple[str, ...]]
    reason: str

    def excludes(self, combination: Combination) -> bool:
        """Return whether this exclusion covers a combination."""
        return all(combination.get(name) in values for name, values in self.values.items())


_WITHOUT_SHIFTS = ("local", "partial", "cluster")
_PRIVATE = ("central", "local", "distributed", "measured", "masked")
_WITHOUT_READOUT = ("lora", "dora", "vera", "prefix", "head", "full", "linear")

EXCLUSIONS = (
    Exclusion(
        {"task": ("open choice",)},
        "a federation counts predictions by label, but here the candidates differ from row to "
        "row; choose a classification, or a choice whose candidates the task lists",
    ),
    Exclusion(
        {"task": ("generation",), "clients": ("phone",)},
        "a phone's program cannot train answers of several tokens; let boards take part",
    ),
    Exclusion(
        {"task": ("generation",), "label bias": ("trained",)},
        "a text has no labels; set adapter.label-bias to false, and choose a method other than "
        "readout",
    ),
    Exclusion(
        {"task": ("generation",), "gradients": ("exact",)},
        "exact gradients exist only for the cross-entropy over labels; set gradients to "
        "differences",
    ),
    Exclusion(
        {"task": ("generation",), "basis": ("informed",)},
        "a basis is computed from labels; leave adapter.basis empty",
    ),
    Exclusion(
        {"engine": ("in-process", "flower"), "clients": ("emulated",)},
        "emulated devices run on the virtual clock of a fleet; use the in-process engine of "
        "samara simulate, or leave fleet.devices out",
    ),
    Exclusion(
        {"engine": ("fleet",), "clients": ("simulated", "board", "phone")},
        "a fleet has only emulated devices; set fleet.devices",
    ),
    Exclusion(
        {"engine": ("in-process",), "clients": ("board", "phone")},
        "live clients join a SuperLink; start it with samara server up",
    ),
    Exclusion(
        {"method": ("cluster",), "clients": ("emulated",)},
        "emulated devices share one state, but every cluster has its own; leave fleet.devices "
        "out, or choose another method",
    ),
    Exclusion(
        {"method": ("readout",), "clients": ("emulated",)},
        "emulated devices train from one state, but here every client adds its own intercept; "
        "leave fleet.devices out, or choose another method",
    ),
    Exclusion(
        {"method": ("local",), "private rounds": ("earlier",)},
        "the method has no common rounds between which a client could run private rounds; set "
        "personal.when to end",
    ),
    Exclusion(
        {"method": ("global", "cluster"), "private rounds": ("earlier",)},
        "there are no private rounds; set personal.when to end, or choose another method",
    ),
    Exclusion(
        {"clients": ("emulated",), "private rounds": ("earlier",)},
        "the time model of emulated devices covers private rounds only after the last round; "
        "set personal.when to end, or leave fleet.devices out",
    ),
    Exclusion(
        {"method": ("readout",), "label bias": ("none",)},
        "the method fits a private label bias; set adapter.label-bias to true",
    ),
    Exclusion(
        {"method": ("partial",), "clients": ("phone",)},
        "a phone's program trains all numbers or none; choose another method",
    ),
    Exclusion(
        {
            "method": ("partial",),
            "basis": ("informed",),
            "label bias": ("none",),
            "adapter": ("inner",),
        },
        "the coordinates in a basis belong to no tensor, so one part alone would be left; set "
        "adapter.label-bias, or leave adapter.basis empty",
    ),
    Exclusion(
        {"method": ("partial",), "adapter": ("readout",), "label bias": ("none",)},
        "a readout is a single tensor, and partial divides tensors; set adapter.label-bias to "
        "true, or adapter.layers to readout,top:1",
    ),
    Exclusion(
        {"basis": ("informed",), "clients": ("phone",)},
        "a phone's program trains the adapter's elements, not coordinates in a basis; leave "
        "adapter.basis empty",
    ),
    Exclusion(
        {"basis": ("informed",), "adapter": ("readout",)},
        "a basis is for adapters inside the model; leave adapter.basis empty, or set "
        "adapter.layers to readout,top:1",
    ),
    Exclusion(
        {"adapter": ("both",), "clients": ("phone",)},
        "a phone's program has either a readout or adapters inside the model; set "
        "adapter.layers to readout or top:1",
    ),
    Exclusion(
        {"adapter": ("readout", "both"), "task": ("open choice", "generation")},
        "the rows have no common labels, so every query of a readout would need scores of the "
        "whole vocabulary; set adapter.layers to top:1",
    ),
    Exclusion(
        {"gradients": ("exact",), "clients": ("phone",)},
        "a phone's program has no backward pass; set gradients to differences",
    ),
    Exclusion(
        {"gradients": ("exact",), "clients": ("emulated",)},
        "the time model of emulated devices has no backward pass; set gradients to differences",
    ),
    Exclusion(
        {"reports": ("components",), "adapter": ("inner", "both")},
        "only with a readout alone does a client's own update need no forward passes; set "
        "adapter.layers to readout, or differences to central",
    ),
    Exclusion(
        {"reports": ("components",), "seed-policy": ("independent", "pool")},
        "components can be added only along the same directions; set seed-policy to shared",
    ),
    Exclusion(
        {"reports": ("components",), "gradients": ("exact",)},
        "a client's own update uses no projected gradients; set gradients to differences",
    ),
    Exclusion(
        {"reports": ("components",), "method": ("cluster",)},
        "clusters are found by projected gradients; set differences to central",
    ),
    Exclusion(
        {"cohorts": ("recorded",), "engine": ("flower", "fleet")},
        "only the in-process engine can repeat a run; leave --cohorts-from out, or --engine and "
        "fleet.devices",
    ),
    Exclusion(
        {"cohorts": ("recorded",), "clients": ("emulated", "board", "phone")},
        "only simulated clients can repeat a run; leave --cohorts-from out",
    ),
    Exclusion(
        {"cohorts": ("recorded",), "method": ("cluster",)},
        "every cluster samples its own cohorts; leave --cohorts-from out",
    ),
    Exclusion(
        {"late reports": ("counted",), "seed-policy": ("shared", "pool")},
        "a late report needs its own directions; set cohort.late-rounds to 0, or seed-policy to "
        "independent",
    ),
    Exclusion(
        {"aggregation": ("coordinates",), "seed-policy": ("independent", "pool")},
        "a median or trimmed mean of projected gradients needs the same directions in every "
        "report; set seed-policy to shared, or aggregation.rule to median-norm",
    ),
    Exclusion(
        {"scalar limit": ("set",), "clients": ("emulated",)},
        "emulated devices have no owner who sets limits; leave data.scalar-limit, "
        "data.least-batch, data.scalars-per-example and data.epsilon-limit out, or "
        "fleet.devices",
    ),
    Exclusion(
        {"privacy": _PRIVATE, "seed-policy": ("independent", "pool")},
        "noise is added to a sum, and reports can be added only along the same directions; set "
        "seed-policy to shared",
    ),
    Exclusion(
        {"privacy": _PRIVATE, "aggregation": ("reports", "coordinates")},
        "these rules read the reports of single clients; set aggregation.rule to mean",
    ),
    Exclusion(
        {"privacy": _PRIVATE, "late reports": ("counted",)},
        "a late report misses the sum of its round; set cohort.late-rounds to 0",
    ),
    Exclusion(
        {"privacy": _PRIVATE, "method": ("cluster",)},
        "clusters are found from the reports of single clients; choose another method",
    ),
    Exclusion(
        {"privacy": _PRIVATE, "method": ("local",)},
        "the method sends nothing that noise could hide; set privacy.mode to none",
    ),
    Exclusion(
        {"privacy": _PRIVATE, "cohorts": ("recorded",)},
        "the ledger does not name the clients of a round; leave --cohorts-from out",
    ),
    Exclusion(
        {"privacy": ("central", "local", "distributed", "measured"), "clients": ("emulated",)},
        "emulated devices do not clip their reports as a whole; leave privacy.mode out, or "
        "fleet.devices",
    ),
    Exclusion(
        {"privacy": ("masked",), "clients": ("emulated",)},
        "emulated devices share forward passes and have no keys for masks, and their time "
        "model has no exchanges for masks; leave privacy.mode out, or fleet.devices",
    ),
    Exclusion(
        {"joint clip": ("adaptive",), "privacy": ("none",)},
        "only differential privacy clips reports as a whole; set privacy.mode, or "
        "privacy.adaptive-clip to false",
    ),
    Exclusion(
        {"buckets": ("drawn",), "privacy": ("none",)},
        "only the sum of a privacy.mode is divided into buckets; set privacy.mode, or set "
        "privacy.bucket to 0 and choose a robust aggregation.rule",
    ),
    Exclusion(
        {"privacy": ("measured",), "engine": ("flower",)},
        "exact evaluations are for measurements in this process; set privacy.evaluation to off",
    ),
    Exclusion(
        {"privacy": ("measured",), "clients": ("board", "phone")},
        "a live client makes no evaluation that ε does not cover; set privacy.evaluation to off",
    ),
)


_PROFILED = "profiled-cross-entropy"
_WITHOUT_DERIVATIVE = ("registered", "summed-cross-entropy", "metric")
_OTHER_OBJECTIVES = (*_WITHOUT_DERIVATIVE, _PROFILED)

FURTHER_EXCLUSIONS = (
    Exclusion(
        {"split": ("text",), "clients": ("phone",)},
        "a phone's page splits its rows by another hash, without the seed and the normalization "
        "of data.split; let boards take part, or set data.split to random",
    ),
    Exclusion(
        {"estimator": ("registered",), "clients": ("phone", "emulated")},
        "a phone's program, and the time model of emulated devices, have only the built-in "
        "estimators; set gradients to differences",
    ),
    Exclusion(
        {"objective": _WITHOUT_DERIVATIVE, "clients": ("phone",)},
        "a phone's program trains the cross-entropy, plain or profiled; set objective to "
        "cross-entropy",
    ),
    Exclusion(
        {"objective": _WITHOUT_DERIVATIVE, "gradients": ("exact",)},
        "exact gradients exist only for the cross-entropy; set gradients to differences",
    ),
    Exclusion(
        {"objective": _OTHER_OBJECTIVES, "reports": ("components",)},
        "a client's own update minimizes the cross-entropy; set objective to cross-entropy",
    ),
    Exclusion(
        {"estimator": ("registered",), "reports": ("components",)},
        "a client's own update uses no projected gradients; set gradients to differences",
    ),
    Exclusion(
        {"objective": ("registered",), "task": ("generation",)},
        "texts are trained by the cross-entropy of their tokens; set objective to cross-entropy",
    ),
    Exclusion(
        {
            "objective": ("summed-cross-entropy",),
            "task": ("classification", "listed choice", "open choice"),
        },
        "labels are compared by their mean losses per token; set objective to cross-entropy",
    ),
    Exclusion(
        {"objective": (_PROFILED,), "task": ("open choice", "generation")},
        "the rows have no common labels whose scores could be shifted; set objective to "
        "cross-entropy",
    ),
    Exclusion(
        {"objective": (_PROFILED,), "label bias": ("trained",), "method": _WITHOUT_SHIFTS},
        "a profiled loss fits a new bias at every step, so a label bias needs one common round "
        "after the last, which this method does not have; set adapter.label-bias to false, or "
        "objective to cross-entropy",
    ),
    Exclusion(
        {"prior": ("common",), "clients": ("phone",)},
        "a phone reports no losses of private fits; set personal.prior to own",
    ),
    Exclusion(
        {"prior": ("common",), "privacy": _PRIVATE},
        "noise would exceed the differences between the candidates' losses, and masks would hide a "
        "false loss from the server's check; set personal.prior to own",
    ),
    Exclusion(
        {"own words": ("mixed",), "task": ("classification", "listed choice", "open choice")},
        "a label is not text that the owner wrote; set personal.own-words to false",
    ),
    Exclusion(
        {"objective": ("metric",), "task": ("generation",), "clients": ("emulated",)},
        "the time model of emulated devices decodes no answers; set objective to cross-entropy",
    ),
)
"""Exclusions about splits, objectives and registered code (`samara.shared.extensions`).

A registered personalization follows the rules of the method ``readout``. A registered aggregation
follows those of rules that weigh whole reports.
"""

TUNING_EXCLUSIONS = (
    Exclusion(
        {"adapter": ("readout", "both"), "space": _WITHOUT_READOUT},
        "only the space of the adapter's tensors has a readout; set space to lora-fa, or "
        "adapter.layers to top:1",
    ),
    Exclusion(
        {"adapter": ("readout",), "optimizer": ("zero-shot", "icl")},
        "the optimizer trains no adapter; leave adapter.layers out",
    ),
    Exclusion(
        {"adapter": ("both",), "optimizer": ("zero-shot", "icl", "linear-probe")},
        "the optimizer trains no adapter; leave adapter.layers out",
    ),
    Exclusion(
        {"adapter": ("readout", "both"), "task": ("open choice", "generation")},
        "the rows have no common labels, so every query of a readout would need scores of the "
        "whole vocabulary; set adapter.layers to top:1",
    ),
)
"""Exclusions of `samara tune`. Its dimensions are ``optimizer``, ``space``, ``adapter`` and
``task``.
"""


def refusals(combination: Combination, exclusions: Sequence[Exclusion] = EXCLUSIONS) -> list[str]:
    """Return one reason for each exclusion of a combination; none if it is supported."""
    return [
        " with ".join(f"{name} {combination[name]}" for name in exclusion.values)
        + f": {exclusion.reason}"
        for exclusion in (*exclusions, *FURTHER_EXCLUSIONS)
        if exclusion.excludes(combination)
    ]


def check_features(
    combination: Combination, source: str = "", exclusions: Sequence[Exclusion] = EXCLUSIONS
) -> None:
    """Check that a combination is supported.

    Args:
        combination: values known so far.
        source: file, task or command to name in the error.
        exclusions: combinations that are not supported.

    Raises:
        ConfigError: with the reasons.
    """
    if messages := refusals(combination, exclusions):
        raise ConfigError((f"{source}: " if source else "") + "\n  ".join(messages))


def kind_of(task: "Task") -> str:
    """Return the value of a task in the dimension ``task``."""
    if task.kind == "choice":
        return "listed choice" if task.labels else "open choice"
    return task.kind
