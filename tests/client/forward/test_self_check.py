"""Every architecture of transformers gives the plain model's scores, or is refused by name."""

from pathlib import Path

import pytest
from architectures import CELLS, NOT_BUILT, Architecture, Cells, NotBuiltError, architectures

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


@pytest.mark.parametrize(
    "tried",
    [
        pytest.param(one, marks=[] if one.name in TWELVE else pytest.mark.exhaustive)
        for one in TRIED
    ],
    ids=str,
)
def test_scores_are_those_of_transformers_or_refused(tried: Architecture, tmp_path: Path) -> None:
    try:
        cells = Cells(tried, tmp_path).all()
    except NotBuiltError as error:
        assert tried.name not in TWELVE
        pytest.skip(f"no tiny model: {error}")
    assert cells.keys() == CELLS.keys()
    ended = ("right", "refused")
    assert not {n: o for n, o in cells.items() if o.partition(":")[0] not in ended}
