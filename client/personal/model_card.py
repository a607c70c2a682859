"""The model card of an exported model, which states its purpose and the code that loads it."""

import json
from collections.abc import Mapping, Sequence

from samara.client.personal.card_base import CardBase
from samara.client.personal.card_code import applying_code, loading_code
from samara.client.personal.own_words import OWN_WORDS_FILE
from samara.client.personal.readout_file import READOUT_FILE
from samara.client.tuning.methods import ClassifierName
from samara.shared.model.peft import WEIGHTS_FILE
from samara.shared.model.scorers import COSINE_TEMPERATURE
from samara.shared.model.structure import Family
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask, Task

CARD_FILE = "README.md"
_SCORES = {
    "causal": "the log-likelihood of the label word after the preceding text",
    "masked": "the log-likelihood of the label word at the mask that takes its place",
    "encoder": "the cosine of the text's vector and the vector that the base model, without the "
    f"adapter, gives to the question with the label word, divided by {COSINE_TEMPERATURE}",
}


def model_card(
    about: str,
    base: CardBase,
    task: Task,
    merged: bool,
    files: Sequence[str],
    left_out: Mapping[str, Sequence[float]],
    classifier: ClassifierName = "label-words",
    has_own_words: bool = False,
) -> str:
    """Return a model card in Markdown, in the format of the Hugging Face hub.

    Args:
        about: sentences that identify the trained model.
        base: the base model.
        task: task to which the model was adapted.
        merged: whether the folder holds a complete model rather than an adapter.
        files: names of the files with trained numbers.
        left_out: trained numbers that no file format can hold, by tensor.
        classifier: source of the scores of a classification.
        has_own_words: whether the folder contains own words.
    """
    is_peft, family = not merged and WEIGHTS_FILE in files, base.family
    header = [
        "---",
        *([f"base_model: {json.dumps(base.hub_id)}"] if base.hub_id else []),
        f"library_name: {'peft' if is_peft else 'transformers'}",
        f"tags: [{'lora, ' if is_peft else ''}samara]",
        "---",
    ]
    if classifier == "label-words":
        code = applying_code(base, task, merged, files, left_out)
    else:
        code = loading_code(base, merged, files)
    blocks = [
        "\n".join(header),
        f"# {task.name}",
        f"{about} {base.describe()}",
        "## Task",
        *_describe_task(task, family, classifier),
        "## Use",
        "Run in this folder:",
        f"```python\n{code}\n```",
    ]
    if READOUT_FILE in files:
        is_all = base.blocks and family != "encoder"
        what = "gives the scores of" if is_all else "is added to these scores:"
        blocks.append(
            f"`{READOUT_FILE}` {what} `weight @ h + bias`, where `h` is "
            + _describe_representation(family)
            + (f", after block {base.blocks}" if base.blocks else "")
            + "."
        )
    if has_own_words:
        blocks.append(
            f"`{OWN_WORDS_FILE}` contains the owner's texts as tokens, and the weights with which "
            "`samara client ask` mixes their words into answers. The code above does not use this "
            "file. Delete the file before you give the model to others."
        )
    for name, numbers in left_out.items():
        values = ", ".join(f"{number:.6g}" for number in numbers)
        blocks.append(f"Also added to the scores, but in no file: {name} [{values}].")
    return "\n\n".join(blocks) + "\n"


def _describe_task(task: Task, family: Family, classifier: ClassifierName) -> list[str]:
    lines = [f"- text: `{json.dumps(task.text, ensure_ascii=False)}`"]
    asks = classifier == "label-words" or (classifier == "linear-probe" and family != "encoder")
    match task:
        case ClassificationTask():
            if task.question and asks:
                question = json.dumps(task.question, ensure_ascii=False)
                lines.append(f"- question after the text: `{question}`")
            lines += [
                f"- label words, in this order: {', '.join(f'`{word}`' for word in task.words)}",
            ]
            score = _SCORES[family]
            if classifier != "label-words":
                h = _describe_representation(family, classifier == "new")
                formula = "`weight @ h + bias`, of `classifier.safetensors`"
                score = f"a number of {formula}, where `h` is {h}"
            rule = f"The score of a label is {score}. The highest score is the answer."
        case ChoiceTask():
            rule = (
                "The score of a candidate is the log-likelihood of the candidate and the text "
                "after it."
            )
        case GenerationTask():
            rule = f"The answer is decoded greedily, with at most {task.tokens} tokens."
    return ["\n".join(lines), rule]


def _describe_representation(family: Family, of_text: bool = False) -> str:
    if family == "encoder":
        return "the pooled, normalised vector of the text"
    if of_text:
        token = {"causal": "last", "masked": "first"}[family]
        return f"the last hidden state at the {token} token of the text"
    return "the last hidden state at the position that predicts the label word"
