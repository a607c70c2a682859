"""The model card of an exported model: what it is for, and how it is loaded. Pure."""

import json
from collections.abc import Mapping, Sequence

from samara.client.tuning.methods import ClassifierName
from samara.shared.model.scorers import COSINE_TEMPERATURE
from samara.shared.model.structure import Family
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask, Task

CARD_FILE = "README.md"
_PEFT_FILE = "adapter_model.safetensors"
_CLASSES = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "encoder": "AutoModel",
}
_SCORES = {
    "causal": "the log-likelihood of the label word after everything before it",
    "masked": "the log-likelihood of the label word at the mask that takes its place",
    "encoder": "the cosine of the text's vector and the vector that the base model, without the "
    f"adapter, gives to the question with the label word, divided by {COSINE_TEMPERATURE}",
}


def model_card(
    about: str,
    base: str,
    family: Family,
    task: Task,
    dtype: str,
    merged: bool,
    files: Sequence[str],
    left_out: Mapping[str, Sequence[float]],
    classifier: ClassifierName = "label-words",
) -> str:
    """Return a model card in Markdown, as the Hugging Face hub reads it.

    Args:
        about: sentences that say which model it is.
        base: name or folder of the base model.
        family: family of the base model.
        task: task that the model was adapted to.
        dtype: compute type that the model was trained with; a checkpoint may be in another one.
        merged: whether the folder holds a whole model, and not an adapter beside its base.
        files: names of the files with trained numbers.
        left_out: numbers that no file has a place for, by name.
        classifier: what gives the scores of a classification.
    """
    is_peft = not merged and _PEFT_FILE in files
    header = [
        "---",
        f"base_model: {json.dumps(base)}",
        f"library_name: {'peft' if is_peft else 'transformers'}",
        f"tags: [{'lora, ' if is_peft else ''}samara]",
        "---",
    ]
    blocks = [
        "\n".join(header),
        f"# {task.name}",
        about,
        "## Task",
        *_describe_task(task, family, classifier),
        "## Use",
        f"```python\n{_loading_code(base, family, dtype, merged, files)}\n```",
    ]
    if "readout.safetensors" in files:
        blocks.append(
            "`readout.safetensors` is added to these scores: `weight @ h + bias`, where `h` is "
            + _describe_representation(family)
            + "."
        )
    for name, numbers in left_out.items():
        values = ", ".join(f"{number:.6g}" for number in numbers)
        blocks.append(f"Added to the scores besides, in no file: {name} [{values}].")
    return "\n\n".join(blocks) + "\n"


def _describe_task(task: Task, family: Family, classifier: ClassifierName) -> list[str]:
    lines = [f"- text: `{json.dumps(task.text, ensure_ascii=False)}`"]
    asks = classifier == "label-words" or (classifier == "linear-probe" and family != "encoder")
    match task:
        case ClassificationTask():
            if task.question and asks:
                question = json.dumps(task.question, ensure_ascii=False)
                lines.append(f"- question behind it: `{question}`")
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
            rule = "The score of a candidate is its log-likelihood and that of what follows it."
        case GenerationTask():
            rule = f"The answer is decoded greedily, at most {task.tokens} tokens."
    return ["\n".join(lines), rule]


def _describe_representation(family: Family, of_text: bool = False) -> str:
    if family == "encoder":
        return "the pooled, normalised vector of the text"
    if of_text:
        token = {"causal": "last", "masked": "first"}[family]
        return f"the last hidden state at the {token} token of the text"
    return "the last hidden state at the position that predicts the label word"


def _loading_code(base: str, family: Family, dtype: str, merged: bool, files: Sequence[str]) -> str:
    loader = _CLASSES[family]
    lines = [f"from transformers import AutoTokenizer, {loader}", ""]
    if merged:
        lines.append('folder = "."  # this folder')
    else:
        lines.append(f"folder = {json.dumps(base)}")
    lines += [
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        f'model = {loader}.from_pretrained(folder, dtype="{dtype}")',
    ]
    if not merged and _PEFT_FILE in files:
        lines.insert(0, "from peft import PeftModel")
        lines.append('model = PeftModel.from_pretrained(model, ".")  # this folder')
    return "\n".join(lines)
