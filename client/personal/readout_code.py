"""The code of a model card that scores a text with an exported readout. Pure."""

import json
from typing import Literal

from shared.model.loading import Family
from shared.model.scorers import COSINE_TEMPERATURE
from shared.tasks.kinds import ClassificationTask

_CAUSAL = """
words, before = {words}, {before}  # the labels' words, and the question before them


def ids(text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def scores(text):
    question, stem = ids(before.rstrip(" ")), ids(text + before.rstrip(" "))
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    first, base = len(start + stem), []
    for word in words:
        whole = ids(before + word)
        tail = whole[len(question) :] if whole[: len(question)] == question else ids(word)
        with torch.no_grad():
            seen = model(torch.tensor([start + stem + tail]), output_hidden_states=True)
        logs = seen.logits[0].log_softmax(-1)
        base.append(sum(logs[first - 1 + i, token] for i, token in enumerate(tail)) / len(tail))
    h = seen.hidden_states[-1][0, first - 1]
    return torch.stack(base) + readout["weight"] @ h + readout["bias"]
"""
_ENCODER = """
def vector(text):
    tokens = tokenizer(text, return_tensors="pt", truncation=True)
    with torch.no_grad():
        hidden = model(**tokens).last_hidden_state[0]
    return torch.nn.functional.normalize({pooled}, dim=0)


labels = torch.stack([vector(text) for text in {prompts}])


def scores(text):
    h = vector(text)
    return labels @ h / {temperature} + readout["weight"] @ h + readout["bias"]
"""


def readout_code(task: ClassificationTask, family: Family, pooling: Literal["mean", "cls"]) -> str:
    """Return code that defines ``scores(text)`` beside a loaded base model; empty for masked LMs.

    Args:
        task: task of the readout.
        family: family of the base model.
        pooling: how a sentence encoder makes one vector of its hidden states.
    """

    def literal(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    match family:
        case "causal":
            words, before = literal(task.words), literal(task.question_before_word)
            code = _CAUSAL.format(words=words, before=before)
        case "encoder":
            pooled = "hidden.mean(0)" if pooling == "mean" else "hidden[0]"
            prompts = literal(task.prompts())
            code = _ENCODER.format(pooled=pooled, prompts=prompts, temperature=COSINE_TEMPERATURE)
        case _:
            return ""
    loaded = 'readout = load_file("readout.safetensors")  # of this folder'
    return f"import torch\nfrom safetensors.torch import load_file\n\n{loaded}\n{code.rstrip()}"
