"""Every architecture of transformers gives the plain model's scores, or is refused by name."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import (
    CELLS,
    NOT_BUILT,
    TOLERANCE,
    Architecture,
    Cells,
    NotBuiltError,
    architectures,
)

from samara.client.forward.body import PerturbedBody
from samara.shared.errors import ModelError
from samara.shared.model.loading import load_base_model
from samara.shared.model.structure import body_of

TWELVE = {
    "DebertaV2ForMaskedLM": "its blocks return two values",
    "T5EncoderModel": "its blocks return three, and hand on a bias",
    "BloomForCausalLM": "rows times heads",
    "GPTBigCodeForCausalLM": "a mask of three dimensions",
    "Gemma3ForConditionalGeneration": "a model for pictures around a text model",
    "MixtralForCausalLM": "a head that wants the choice of experts",
    "MambaForCausalLM": "a head that wants the state",
    "AlbertForMaskedLM": "one block that is used three times",
    "XLMWithLMHeadModel": "no blocks; causal by name",
    "XLNetLMHeadModel": "reads both ways; causal by name",
    "BigBirdForMaskedLM": "sparse attention",
    "FNetForMaskedLM": "ignores the mask",
}
TRIED = [tried for tried in architectures() if str(tried) not in NOT_BUILT]


PARAMETERS = [
    pytest.param(one, marks=[] if one.name in TWELVE else pytest.mark.exhaustive, id=str(one))
    for one in TRIED
]


@pytest.mark.parametrize("tried", PARAMETERS)
def test_scores_are_those_of_transformers_or_refused(tried: Architecture, tmp_path: Path) -> None:
    try:
        cells = Cells(tried, tmp_path).all()
    except NotBuiltError as error:
        assert tried.name not in TWELVE
        pytest.skip(f"no tiny model: {error}")
    assert cells.keys() == CELLS.keys()
    ended = ("right", "refused")
    assert not {n: o for n, o in cells.items() if o.partition(":")[0] not in ended}


CAUSAL = [one for one in PARAMETERS if one.id.startswith("causal")]


@pytest.mark.parametrize("tried", CAUSAL)
def test_a_text_goes_on_as_in_transformers(tried: Architecture, tmp_path: Path) -> None:
    """A KV cache is used if it gives the same states; other models run over the whole text."""
    try:
        cells = Cells(tried, tmp_path)
    except NotBuiltError as error:
        pytest.skip(f"no tiny model: {error}")
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        try:
            body = PerturbedBody(load_base_model(str(tmp_path)), 0)
        except ModelError as refused:
            pytest.skip(str(refused))
        texts = [(5, 7, 9, 11, 6), (8, 4, 10, 12, 9)]
        _, cache = body.continue_texts(texts)
        longer = [(*text, 7, 13) for text in texts]
        given = longer if cache is None else [(7, 13)] * 2
        found, _ = body.continue_texts(given, cache)
        whole = body_of(cells.plain)(input_ids=torch.tensor(longer)).last_hidden_state
    expected = whole[:, -1]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("CLIPTextModel", "right"),  # takes no inputs_embeds
        ("Mamba2ForCausalLM", "refused: PEFT does not adapt layers.2.mixer.out_proj"),
        ("MossTranscribeDiarizeForConditionalGeneration", "right"),  # a causal LM for speech
    ],
)
def test_an_export_is_read_by_peft_or_refused(name: str, ends: str, tmp_path: Path) -> None:
    (one,) = [each for each in architectures() if each.name == name]
    assert Cells(one, tmp_path).outcome("PEFT").startswith(ends)


def test_a_model_is_checked_once_a_process(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(model_folder("causal"))
    PerturbedBody(load_base_model(folder), 0)

    def checked(*_: object) -> None:
        raise AssertionError("it is checked again")

    monkeypatch.setattr(PerturbedBody, "_find_way", checked)
    PerturbedBody(load_base_model(folder), 0)
    with pytest.raises(AssertionError, match="checked again"):
        PerturbedBody(load_base_model(folder, dtype="bfloat16"), 1)


def test_a_body_that_is_made_again_runs_no_probe(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> dict[str, object]:
        body = PerturbedBody(load_base_model(str(model_folder("causal"))), 1, packs=True)
        names = {id(part): name for name, part in body._blocks[-1].named_modules()}
        parts = [names[id(part)] for part in body._position_wise]
        found = body._outputs_of_block, body._can_pack, body._can_select, body._repeats_late
        return {"parts": parts, "found": found}

    def run(*_: object) -> None:
        raise AssertionError("a probe runs")

    first = made()
    monkeypatch.setattr(PerturbedBody, "_hidden_states", run)
    assert made() == first
