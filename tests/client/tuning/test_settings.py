"""Settings of tuning runs: automatic values, and refusals."""

from typing import Any

import pytest
from helpers import ROOT

from samara.client.tuning.methods import SPACES, Optimizer
from samara.client.tuning.settings import TuneSettings
from samara.shared.errors import ConfigError

UNREAD = (
    "{} does not read this setting; leave it out, or choose prge or mezo or mezo-momentum or "
    "mezo-adam"
)


@pytest.mark.parametrize("method", SPACES)
def test_open_settings_are_completed_by_method_and_space(method: Optimizer) -> None:
    for space in ("auto", *SPACES[method]):
        given: dict[str, Any] = {"learning-rate": 0.1} if method == "fo-sgd" else {}
        completed = TuneSettings(optimizer=method, space=space, **given).complete(3)
        assert completed.threads == 3
        if SPACES[method]:
            assert completed.space == (SPACES[method][0] if space == "auto" else space)
            assert completed.estimates_its_rate or completed.rate > 0
        tries = method == "prge" or method.startswith("mezo")
        assert (completed.queries > 0) == tries
        assert (completed.epsilon > 0) == tries
        assert TuneSettings.of(completed.flat(), "again") == completed


@pytest.mark.parametrize(
    ("given", "is_in_place"),
    [
        ({}, True),
        ({"model.stream": "disk"}, True),
        ({"autocast": "float16"}, True),
        ({"in-place": False}, False),
        ({"model.dtype": "bfloat16"}, False),
        ({"model.dtype": "bfloat16", "in-place": True}, True),
        ({"model.stream": "host", "stream-compression": "bfloat16"}, False),
        ({"space": "lora"}, False),
        ({"optimizer": "fo-adam"}, False),
        ({"gradients": "forward-mode"}, False),
        ({"gradients": "forward-mode", "learning-rate": 0.1}, True),
        ({"scaling.modify": "variance", "learning-rate": 0.1}, False),
        (
            {"scaling.modify": "variance", "scaling.norms": "parameters", "learning-rate": 0.1},
            True,
        ),
    ],
)
def test_parameters_are_perturbed_in_place_in_float32(
    given: dict[str, Any], is_in_place: bool
) -> None:
    completed = TuneSettings.of({"optimizer": "mezo", "space": "full"} | given, "test").complete(1)
    assert completed.in_place is is_in_place
    assert ("in-place" in completed.identity()) == is_in_place


def test_given_settings_are_not_changed() -> None:
    given = {"queries": 7, "epsilon": 0.5, "learning-rate": 0.25, "threads": 2}
    completed = TuneSettings.of(given, "test").complete(3)
    assert {key: completed.flat()[key] for key in given} == given


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimizer": "prge", "space": "full"},
            "space: prge can train lora-fa or lora or vera or prefix, but not full; methods that "
            "can train full: mezo, mezo-momentum, mezo-adam, fo-adam, fo-sgd, zero-offload",
        ),
        ({"optimizer": "lora", "space": "prefix"}, "lora can train lora, but not prefix"),
        (
            {"optimizer": "fo-sgd"},
            "learning-rate: fo-sgd has no default; set learning-rate to a number",
        ),
        (
            {"optimizer": "mezo", "space": "dora", "model.stream": "host"},
            "model.stream: PEFT computes dora from the weights of all blocks at once",
        ),
        (
            {"optimizer": "mezo", "space": "vera", "adapter.label-bias": True},
            "adapter.label-bias: vera has no label bias",
        ),
        (
            {"optimizer": "mezo", "space": "dora", "gradients": "forward-mode"},
            "gradients: PEFT treats the norm in dora as a constant",
        ),
        ({"optimizer": "icl", "space": "lora"}, "icl trains nothing in the model; leave space out"),
        ({"optimizer": "fo-adam", "queries": 2}, UNREAD.format("queries: fo-adam")),
        (
            {"optimizer": "mezo", "differences": "forward"},
            "mezo has no forward differences; choose",
        ),
        (
            {"differences": "one-point", "learning-rate": 0.1},
            "prge has no one-point differences; choose",
        ),
        (
            {"optimizer": "mezo", "differences": "one-point"},
            "which needs more than one loss per direction",
        ),
        ({"warm-up": 5}, "warm-up: an estimated learning rate has no schedule"),
        ({"warm-up": 5, "steps": 5, "learning-rate": 0.1}, "no step has the full learning rate"),
        (
            {"optimizer": "mezo", "space": "lora", "in-place": True},
            "in-place: in the space lora the model's",
        ),
        (
            {"optimizer": "mezo", "space": "full", "model.quantization": "nf4"},
            "model.quantization: a perturbation of all parameters cannot be added to weights",
        ),
        (
            {"optimizer": "mezo", "gradients": "exact"},
            "a separate batch for every direction, but",
        ),
        (
            {"gradients": "forward-mode", "differences": "forward"},
            "differences: forward-mode computes derivatives without differences; leave differences "
            "out",
        ),
        (
            {"gradients": "forward-mode", "objective": "metric"},
            "gradients: a metric has no derivative",
        ),
        (
            {"gradients": "forward-mode", "adapter.layers": "readout"},
            "gradients: forward-mode is for parameters inside the model",
        ),
        (
            {"optimizer": "mezo", "gradients": "forward-mode", "in-place": True},
            "in-place: the learning rate is estimated from perturbations, whose rounding errors in "
            "place",
        ),
        (
            {"optimizer": "mezo", "scaling.modify": "variance"},
            "scaling.modify: the estimate of the learning rate assumes directions of equal scale",
        ),
        (
            {"optimizer": "mezo", "space": "lora-fa", "scaling.modify": "variance"}
            | {"learning-rate": 0.1},
            "scaling.modify: directions of the space lora-fa cannot be scaled",
        ),
        (
            {"optimizer": "mezo", "scaling.modify": "variance", "differences": "one-point"}
            | {"learning-rate": 0.1},
            "scaling.modify: MeZO's definitions 6 and 7 need two losses",
        ),
        (
            {"optimizer": "mezo", "scaling.modify": "variance", "in-place": True}
            | {"learning-rate": 0.1},
            "scaling.norms: perturbing single groups in place would leave rounding errors",
        ),
        (
            {"optimizer": "mezo", "space": "prefix", "scaling.modify": "variance"}
            | {"learning-rate": 0.1, "scaling.norms": "backward"},
            "scaling.norms: backward needs all parameters in float32",
        ),
        (
            {"optimizer": "mezo", "space": "prefix", "prefix-width": 8},
            "prefix-start: with prefix-width, a network also computes the prefix's start",
        ),
        (
            {"optimizer": "mezo", "space": "lora", "classifier": "new"},
            "classifier: a linear layer in place of label words can only be trained together with "
            "all",
        ),
        (
            {
                "optimizer": "fo-adam",
                "space": "full",
                "classifier": "new",
                "objective": "likelihood",
            },
            "objective: a classifier's scores are not the likelihoods",
        ),
        (
            {"optimizer": "mezo", "classifier": "new", "model.stream": "host"},
            "classifier: only parameters in the model's files can be streamed",
        ),
        ({"tf32": True}, "tf32: cpu has no TF32; set model.torch-device to cuda"),
        (
            {"autocast": "bfloat16", "adapter.layers": "readout"},
            "autocast: a readout's differences need float32",
        ),
        (
            {"autocast": "bfloat16", "gradients": "exact"},
            "autocast: zeroth-order methods use autocast for differences of losses only",
        ),
        (
            {"optimizer": "mezo", "rate-per-query": True},
            "rate-per-query: an estimated learning rate already depends on the number of",
        ),
        (
            {"data.per-label": 16, "data.train": 32},
            "data.train: data.per-label already sets the number of examples",
        ),
        (
            {"optimizer": "lsp", "model.dtype": "float16"},
            "float16 is too coarse for the updates; set model.dtype to float32 or bfloat16",
        ),
        (
            {"optimizer": "fo-adam", "autocast": "float16"},
            "autocast: small gradients of a backward pass are zero in float16",
        ),
        ({"scaling.modify": "variance"}, "scaling.modify: prge does not read this setting"),
        ({"in-place": True}, "in-place: prge does not read this setting"),
        ({"optimizer": "mezo", "moments": "held"}, "choose mezo-momentum or mezo-adam"),
        ({"optimizer": "fo-adam", "weight-decay": 0.1}, UNREAD.format("weight-decay: fo-adam")),
        (
            {"optimizer": "prge", "demonstrations": 3},
            "prge does not read this setting; leave it out, or choose icl",
        ),
        ({"optimizer": "zero-shot", "epsilon": 0.1}, UNREAD.format("epsilon: zero-shot")),
        (
            {"optimizer": "fo-adam", "objective": "metric"},
            "cannot train a metric, unlike zeroth-order methods",
        ),
        (
            {"optimizer": "fo-adam", "objective": "profiled-cross-entropy"},
            "cannot train a profiled loss, unlike zeroth-order methods",
        ),
        (
            {"objective": "profiled-cross-entropy", "adapter.label-bias": True},
            "adapter.label-bias: a profiled loss fits a bias at every step",
        ),
        (
            {"optimizer": "fo-adam", "model.quantization": "nf4"},
            "smaller than the distance between quantized weights",
        ),
        (
            {"optimizer": "fo-adam", "space": "full", "model.dtype": "bfloat16"},
            "bfloat16 is too coarse for the updates",
        ),
        ({"optimizer": "lsp", "model.quantization": "int8"}, "so rounding would remove them"),
        (
            {"optimizer": "lora", "model.dtype": "float16"},
            "lora in the space lora trains the",
        ),
        ({"optimizer": "lsp", "space": "full"}, "space: lsp can train linear, but not full"),
        (
            {"optimizer": "zero-offload", "lsp.nonzeros": 4},
            "zero-offload does not read this setting",
        ),
        ({"optimizer": "lsp", "lsp.threshold": 0.0}, "lsp.threshold: Input should be greater"),
        ({"data.path": "d", "task": "sst2"}, "the embedded model knows the words of generated"),
        ({"data.path": "d", "model.path": "m"}, "messages asks about generated messages"),
        ({"optimizer": "adam"}, "optimizer: Input should be 'prge', 'mezo'"),
        ({"validate-every": 0}, "validate-every: Input should be greater"),
        ({"stepz": 1}, "stepz: there is no such setting; did you mean steps?"),
        (
            {"evaluate.every": 20},
            "evaluate.every: there is no such setting; did you mean validate-every",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match="1 mistake in the settings") as refused:
        TuneSettings.of(settings, "test")
    assert message in str(refused.value)


def test_the_former_name_of_the_optimizer_is_read() -> None:
    assert TuneSettings.of({"method": "lora"}, "test") == TuneSettings(optimizer="lora")


def test_mistakes_about_method_and_data_are_reported_together() -> None:
    settings = {"optimizer": "icl", "space": "full", "queries": 2, "epsilon": 0.1, "data.path": "d"}
    with pytest.raises(ConfigError, match="5 mistakes") as refused:
        TuneSettings.of(settings, "test")
    for key in ("space", "queries", "epsilon", "model", "task"):
        assert f"\n  {key}: " in str(refused.value)


def test_the_pages_on_tuning_name_every_setting_of_its_own_and_every_method() -> None:
    reference, guide = (
        (ROOT / "docs" / folder / "tune.md").read_text() for folder in ("reference", "guides")
    )
    own = [key for key in TuneSettings().flat() if not key.startswith(("model.", "adapter."))]
    assert [key for key in own if f"`{key}`" not in reference] == []
    assert [method for method in SPACES if f"`{method}`" not in guide] == []
