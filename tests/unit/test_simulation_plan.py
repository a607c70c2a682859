"""What a simulation says of its data before it begins."""

from client.training.client_data import ClientData
from shared.config import RunConfig
from shared.model.scorers import Prompt
from shared.tasks.rows import Example
from simulations.plan import describe_cut


def tokens_by_letter(example: Example) -> Prompt:
    return Prompt((tuple(range(len(example.text))),), ((0,),))


def test_texts_that_fill_the_models_length_are_told() -> None:
    config = RunConfig.of({"model.max-length": 20}, "test")
    texts = ["short", "a" * 20, "two words", "b" * 20]
    examples = [Example(text, 0, "ann", "train") for text in texts]
    share = ClientData(0, examples, tokens_by_letter)
    said = describe_cut(config, [share])
    assert said.startswith("long texts: 2 of 4 training examples fill model.max-length, 20 tokens;")
    assert describe_cut(config, [ClientData(0, examples[:1], tokens_by_letter)]) == ""
