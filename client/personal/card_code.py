"""Python code for a model card that applies the model with transformers alone.

The code computes the same scores as `samara.shared.model.scorers`, for one text at a time.
"""

import json
from collections.abc import Mapping, Sequence

from samara.client.personal.card_base import CardBase
from samara.client.personal.readout_file import READOUT_FILE
from samara.shared.model.peft import WEIGHTS_FILE
from samara.shared.model.prompt_frame import PromptFrame
from samara.shared.model.scorers import COSINE_TEMPERATURE
from samara.shared.model.structure import Family
from samara.shared.tasks.kinds import ClassificationTask, Task
from samara.shared.tasks.templates import field_names, parse_template

_CLASSES: dict[Family, str] = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "encoder": "AutoModel",
}


def loading_code(base: CardBase, merged: bool, files: Sequence[str]) -> str:
    """Return the code that loads the tokenizer and the model.

    Args:
        base: the base model.
        merged: whether the folder holds a complete model.
        files: names of the files with trained numbers.
    """
    loader = _CLASSES[base.family]
    has_peft = not merged and WEIGHTS_FILE in files
    is_cut = not merged and base.blocks > 0
    names = sorted(["AutoTokenizer", loader, *(["AutoConfig"] if is_cut else [])])
    lines = ["from peft import PeftModel"] * has_peft
    lines += [f"from transformers import {', '.join(names)}", ""]
    lines += ['folder = "."  # this folder'] if merged else [f"folder = {json.dumps(base.place)}"]
    lines.append("tokenizer = AutoTokenizer.from_pretrained(folder)")
    given = ""
    if is_cut:
        lines += _cutting_lines(base.blocks)
        given = "config=config, "
    lines.append(f'model = {loader}.from_pretrained(folder, {given}dtype="{base.dtype}")')
    if has_peft:
        lines.append('model = PeftModel.from_pretrained(model, ".")  # this folder')
    return "\n".join(lines)


def _cutting_lines(blocks: int) -> list[str]:
    return [
        "config = AutoConfig.from_pretrained(folder)",
        "for name, value in list(vars(config).items()):",
        "    if isinstance(value, list) and len(value) == config.num_hidden_layers:",
        f"        setattr(config, name, value[:{blocks}])",
        f"config.num_hidden_layers = {blocks}  # nothing above is read",
    ]


def applying_code(
    base: CardBase,
    task: Task,
    merged: bool,
    files: Sequence[str],
    left_out: Mapping[str, Sequence[float]],
) -> str:
    """Return code that loads the model and, if possible, classifies a row.

    The code only loads the model if the task is not a classification, if the label word is inside
    the text, or if an encoder's pooling needs further modules.

    Args:
        base: the base model.
        task: task to which the model was adapted.
        merged: whether the folder holds a complete model.
        files: names of the files with trained numbers.
        left_out: numbers that are added to the scores but are in no file, by name.
    """
    loading = loading_code(base, merged, files)
    if not isinstance(task, ClassificationTask) or task.word_is_inside:
        return loading
    if base.pooling is not None and not base.pooling.is_plain:
        return loading
    has_readout = READOUT_FILE in files
    head = ["import torch"] + ["from safetensors.torch import load_file"] * has_readout
    lines = [*head, loading, "model.eval()", *_row_lines(task), *_shortening_lines()]
    lines += _scoring_lines(base, task, merged, files)
    if has_readout:
        lines.append(f'readout = load_file("{READOUT_FILE}")')
        added = 'readout["weight"] @ h + readout["bias"]'
        is_all = base.blocks and base.family != "encoder"
        lines.append(f"scores = {added}" if is_all else f"scores = scores + {added}")
    for name, numbers in left_out.items():
        lines.append(f"scores = scores + torch.tensor({[*numbers]})  # {name}")
    lines.append("print(dict(zip(words, scores.softmax(0).tolist())))")
    return "\n".join(lines)


def _row_lines(task: ClassificationTask) -> list[str]:
    """Return the code lines that build the text of a row and name the label words."""
    row = {field: next(iter(task.replace.get(field, {"…": ""}))) for field in task.fields}
    parts = []
    for literal, field in parse_template(task.text):
        if literal:
            parts.append(json.dumps(literal, ensure_ascii=False))
        if field is not None:
            name = field_names(field)[0]
            own = f"row[{json.dumps(name, ensure_ascii=False)}]"
            known = task.replace.get(name)
            parts.append(f"{json.dumps(known, ensure_ascii=False)}[{own}]" if known else own)
    return [
        f"words = {json.dumps([word.strip() for word in task.words], ensure_ascii=False)}",
        "",
        f"row = {json.dumps(row, ensure_ascii=False)}  # the fields of a row to answer",
        f"text = {' + '.join(parts)}",
        "",
    ]


def _shortening_lines() -> list[str]:
    return [
        "",
        "def shortened(text, limit):",
        "    while True:",
        "        places = tokenizer(",
        "            text, add_special_tokens=False, return_offsets_mapping=True",
        '        )["offset_mapping"]',
        "        if len(places) <= limit:",
        "            return text",
        "        text = text[: min(places[limit - 1][1], places[limit][0], len(text) - 1)]",
        "",
        "",
        "def tokens_of(text, special=False):",
        '    return tokenizer(text, add_special_tokens=special)["input_ids"]',
        "",
        "",
        "torch.set_grad_enabled(False)",
    ]


def _scoring_lines(
    base: CardBase, task: ClassificationTask, merged: bool, files: Sequence[str]
) -> list[str]:
    """Return the code lines that compute `scores`, and the representation `h` for a readout."""
    if base.family == "encoder":
        return _encoder_lines(base, task, merged, files)
    limit = base.max_length
    has_readout = READOUT_FILE in files
    frame = base.frame
    words = list(task.words)
    asked = task.question_before_word
    if frame is not None and frame.is_chat:
        words = [word.strip() for word in words]
        asked = frame.after
    lines = [
        f"question = {json.dumps(asked, ensure_ascii=False)}",
        f"spaced = {json.dumps(words, ensure_ascii=False)}",
        'asked = tokens_of(question.rstrip(" "))',
        "word_tokens = []",
        "for word in spaced:",
        "    whole = tokens_of(question + word)",
        "    follows = whole[: len(asked)] == asked",
        "    word_tokens.append(whole[len(asked) :] if follows else tokens_of(word))",
    ]
    if base.family == "masked":
        after = json.dumps(task.question_after_word, ensure_ascii=False)
        lines += [
            f"asked = question + tokenizer.mask_token + {after}",
            f"text = shortened(text, {limit} - len(tokens_of(asked, special=True)))",
            "ids = tokens_of(text + asked, special=True)",
            "place = max(i for i, token in enumerate(ids) if token == tokenizer.mask_token_id)",
            "output = model(torch.tensor([ids]), output_hidden_states=True)",
            "known = output.logits[0, place].float().log_softmax(0)",
            "scores = torch.stack([known[tokens[0]] for tokens in word_tokens])",
        ]
        return lines + ["h = output.hidden_states[-1][0, place].float()"] * has_readout
    lines += _stem_lines(frame, limit)
    if has_readout:
        lines += [
            "output = model(torch.tensor([stem]), output_hidden_states=True)",
            "h = output.hidden_states[-1][0, -1].float()",
        ]
    if base.blocks and has_readout:
        return lines
    return [
        *lines,
        "scores = []",
        "for tokens in word_tokens:",
        "    logits = model(torch.tensor([stem + tokens[:-1]])).logits[0, len(stem) - 1 :].float()",
        "    known = logits.log_softmax(1)[range(len(tokens)), tokens]",
        "    scores.append(known.mean())",
        "scores = torch.stack(scores)",
    ]


def _stem_lines(frame: PromptFrame | None, limit: int) -> list[str]:
    """Return the code lines that build the tokens before an answer."""
    room = f"room = {limit} - len(begin) - len(asked) - max(map(len, word_tokens))"
    if frame is not None and frame.is_chat:
        return [
            f"before = {json.dumps(frame.before, ensure_ascii=False)}  # the model's chat template",
            room.replace("begin", "tokens_of(before)"),
            'stem = tokens_of(before + shortened(text, room).strip() + question.rstrip(" "))',
        ]
    begin = "[] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]"
    return [
        f"begin = {begin if frame is None else list(frame.start)}",
        room,
        'stem = begin + tokens_of(shortened(text, room) + question.rstrip(" "))',
    ]


def _encoder_lines(
    base: CardBase, task: ClassificationTask, merged: bool, files: Sequence[str]
) -> list[str]:
    assert base.pooling is not None
    pooled = "states[0]" if base.pooling.modes == ("cls",) else "states.mean(0)"
    lines = [
        "",
        "def vector_of(text, model):",
        f'    text = shortened(text, {base.max_length} - len(tokens_of("", special=True)))',
        "    ids = torch.tensor([tokens_of(text, special=True)])",
        "    states = model(input_ids=ids).last_hidden_state[0].float()",
        f"    return torch.nn.functional.normalize({pooled}, dim=0)",
        "",
        "",
        f"prompts = {json.dumps(task.prompts(), ensure_ascii=False)}",
    ]
    labels = "torch.stack([vector_of(prompt, {}) for prompt in prompts])"
    if not merged and WEIGHTS_FILE in files:
        lines += ["with model.disable_adapter():", f"    labels = {labels.format('model')}"]
    elif merged and READOUT_FILE not in files:
        lines += [
            "# the vectors of the labels come from the base model without the adapter",
            f'base = AutoModel.from_pretrained({json.dumps(base.place)}, dtype="{base.dtype}")',
            f"labels = {labels.format('base.eval()')}",
        ]
    else:
        lines.append(f"labels = {labels.format('model')}")
    return [
        *lines,
        "h = vector_of(text, model)",
        f"scores = labels @ h / {COSINE_TEMPERATURE}",
    ]
