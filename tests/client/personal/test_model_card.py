"""The header of a model card, which tells the Hugging Face hub how to load the model."""

import pytest

from samara.client.personal.card_base import CardBase
from samara.client.personal.model_card import model_card
from samara.shared.model.sentence_pooling import SentencePooling
from samara.shared.tasks.catalog import load_task


@pytest.mark.parametrize(
    ("file", "merged", "library"),
    [
        ("adapter_model.safetensors", False, "peft"),
        ("readout.safetensors", False, "transformers"),
        ("model.safetensors", True, "transformers"),
    ],
)
def test_the_library_is_the_one_that_loads_the_files(file: str, merged: bool, library: str) -> None:
    task = load_task("messages")
    base = CardBase("base", "", {}, "encoder", pooling=SentencePooling())
    card = model_card("A model.", base, task, merged, [file], {})
    assert f"library_name: {library}\n" in card
    assert ("lora" in card) == ("PeftModel" in card) == (library == "peft")
