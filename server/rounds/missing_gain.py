"""Warning for a run without a measurable gain, with suggestions of settings."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from samara.server.rounds.evaluation import is_global_validation
from samara.shared.settings.choices import AUTO, READOUT, READOUT_AT_A_DEPTH, choose
from samara.shared.settings.sections import adapter_kind
from samara.shared.terms.columns import GLOBAL

Figures = Mapping[str, Mapping[str, Any]]
"""Figures of an evaluation, by client."""


class _Change(NamedTuple):
    """The change of a figure from the first state to the last state.

    Attributes:
        before, after: means over the clients.
        error: standard error of the mean change over the clients.
    """

    before: float
    after: float
    error: float

    @property
    def mean(self) -> float:
        return self.after - self.before


def describe_missing_gain(
    events: Sequence[Mapping[str, Any]], newcomers: Collection[int], config: Mapping[str, Any]
) -> str:
    """Return a warning if validation shows no gain of the global model; otherwise empty text.

    The last state of the run is compared with the first state. There is a gain if the clients' mean
    loss fell, or their mean accuracy rose, by more than the standard error of the mean change. With
    a single client, the accuracy must rise by more than the standard error of a proportion. Means
    are not trimmed, because a trimmed mean would leave out the clients with the largest losses.

    Args:
        events: events of a run that has ended.
        newcomers: clients whose validation does not count.
        config: settings of the run by dotted key.

    Returns:
        The warning with suggestions; empty if there is a gain or the states cannot be compared.
    """
    validations: dict[int, Figures] = {
        event["round"]: event["columns"][GLOBAL]["clients"]
        for event in events
        if is_global_validation(event)
    }
    rounds = [event for event in events if event["event"] == "round"]
    if 0 not in validations or not rounds:
        return ""
    last = rounds[-1]["round"]
    back_to = rounds[-1].get("back_to")
    if back_to == 0:
        return f"the run gained nothing: it ends with its initial model. {_what_to_try(config)}"
    if last not in validations and back_to is not None:
        last = back_to
    if last not in validations:
        return ""
    first, final = validations[0], validations[last]
    clients = [i for i in first if i in final and int(i) not in newcomers]
    if not clients:
        return ""
    loss, accuracy = (_change(first, final, clients, name) for name in ("loss", "accuracy"))
    fell = len(clients) > 1 and loss.mean + loss.error < 0
    if fell or accuracy.mean > accuracy.error:
        return ""
    figures = (
        f"the mean loss of {len(clients)} clients is {loss.after:.3f}, from {loss.before:.3f} "
        f"({loss.mean:+.3f} ± {loss.error:.3f}); their mean accuracy is "
    )
    if len(clients) == 1:
        figures = f"the client's loss is {loss.after:.3f}, from {loss.before:.3f}; its accuracy is "
    return (
        f"validation shows no gain over the initial model: {figures}"
        f"{accuracy.after:.1%}, from {accuracy.before:.1%} "
        f"({100 * accuracy.mean:+.1f} ± {100 * accuracy.error:.1f} points, standard error). "
        f"{_what_to_try(config)}"
    )


def _change(first: Figures, final: Figures, clients: Sequence[str], name: str) -> _Change:
    before = np.array([first[client][name] for client in clients], np.float64)
    after = np.array([final[client][name] for client in clients], np.float64)
    error = 0.0
    if len(clients) > 1:
        error = float((after - before).std(ddof=1)) / math.sqrt(len(clients))
    elif name == "accuracy":
        share = float(after[0])
        examples = final[clients[0]]["examples"]
        error = math.sqrt(share * (1 - share) / examples)
    return _Change(float(before.mean()), float(after.mean()), error)


def _what_to_try(config: Mapping[str, Any]) -> str:
    """Suggest settings that the run did not use."""
    tries = []
    could_be = choose({**config, "adapter.layers": AUTO})["adapter.layers"].value
    if could_be == READOUT_AT_A_DEPTH and adapter_kind(config["adapter.layers"]) != READOUT:
        tries.append(f"adapter.layers = {could_be}, which gains more per pass")
    if not config["evaluate.best"]:
        tries.append(
            "evaluate.best = true, which ends with the initial model if no round is better"
        )
    if config["aggregation.rule"] != "mean":
        tries.append(
            "aggregation.rule = mean if the clients' labels differ and no client may be hostile"
        )
    return f"Try {'; '.join([*tries, 'more validation examples, which show smaller gains'])}."
