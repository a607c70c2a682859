"""Export of the index for browsers: a program's files, and its tokenization."""

import copy
import tempfile
from pathlib import Path
from typing import Any

from samara.devices.phone.manifest import Manifest, hash_program, manifest_file
from samara.devices.phone.program_index import (
    ListedFile,
    ListedWeights,
    ProgramIndex,
    Tokenization,
    index_file,
    tokenizer_folder,
)
from samara.shared.model.loading import BaseModel
from samara.shared.model.scorers import CausalScorer, ChoiceScorer, EncoderScorer
from samara.shared.storage.files import make_folder, write_durably
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask

TOKENIZER_FILES = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
"""Tokenizer files that the Hugging Face library for browsers reads; some may be missing."""
SAMPLES = (
    "what a lovely film",
    "Not GOOD, not bad; 3.5 out of 10!",
    "  two  spaces, a\ttab",
    "naïve café, ΑΒΓ, Привет, 東京, مرحبا",
    "👍🏽 🙃",
)
"""Sample texts that reveal differences between tokenizers."""


def write_index(
    program: Path,
    manifest: Manifest,
    base: BaseModel,
    task: ClassificationTask | ChoiceTask,
    scorer: CausalScorer | ChoiceScorer | EncoderScorer,
) -> None:
    """Write the index of a program and its tokenizer files, if its task has label words.

    Args:
        program: path of the program, with manifest and weights beside it.
        manifest: manifest of the program.
        base: base model.
        task: task; no index is written for a choice task, because browsers do not support choice
            tasks.
        scorer: scorer of model and task.

    Raises:
        OSError: if a file cannot be written.
    """
    index_file(program).unlink(missing_ok=True)
    if isinstance(scorer, ChoiceScorer) or not isinstance(task, ClassificationTask):
        return
    limited = copy.copy(scorer)
    limited.max_length = min(scorer.max_length, manifest.sequence)
    tokenization = _tokenization(base, task, limited)
    ProgramIndex(
        version=1,
        manifest=_listed(manifest_file(program)),
        graph=_listed(program),
        weights=[
            ListedWeights(path=one.path, sha256=one.sha256, bytes=one.bytes)
            for one in manifest.weights
        ],
        tokenizer=_write_tokenizer(base, tokenizer_folder(program)),
        task=task.model_dump(mode="json", exclude={"form"}) | {"fields": list(task.fields)},
        tokenization=tokenization,
        examples=_examples(base, task, limited, tokenization.limit),
    ).write(program)


def _listed(file: Path) -> ListedFile:
    return ListedFile(sha256=hash_program(file), bytes=file.stat().st_size)


def _write_tokenizer(base: BaseModel, folder: Path) -> dict[str, ListedFile]:
    """Write the files of a model's tokenizer; return them by name."""
    make_folder(folder)
    with tempfile.TemporaryDirectory() as saved:
        base.tokenizer.save_pretrained(saved)
        for name in TOKENIZER_FILES:
            if (Path(saved) / name).exists():
                write_durably(folder / name, (Path(saved) / name).read_bytes())
    return {file.name: _listed(file) for file in sorted(folder.iterdir())}


def _tokenization(
    base: BaseModel, task: ClassificationTask, scorer: CausalScorer | EncoderScorer
) -> Tokenization:
    """Return the scorer's tokenization rule, which `_examples` verifies."""
    if isinstance(scorer, EncoderScorer):
        special = len(base.tokenizer("")["input_ids"])
        limit = scorer.max_length - special
        return Tokenization(special=True, before=[], after="", limit=limit, answers=[])
    frame = scorer.frame
    longest = max(map(len, scorer.label_tokens))
    before = frame.before if frame.is_chat else list(frame.start)
    question = frame.stem
    limit = scorer.max_length - frame.token_count(base) - longest
    answers = [list(tokens) for tokens in scorer.label_tokens] if longest > 1 else []
    return Tokenization(special=False, before=before, after=question, limit=limit, answers=answers)


def _examples(
    base: BaseModel, task: ClassificationTask, scorer: CausalScorer | EncoderScorer, limit: int
) -> list[dict[str, Any]]:
    """Return rows with the scorer's token ids, leaving out rows that need shortening."""
    examples = []
    for sample in SAMPLES:
        row = dict.fromkeys(task.fields, sample)
        text = task.render(row)
        if len(base.tokenizer(text, add_special_tokens=False)["input_ids"]) > limit:
            continue
        prompt = scorer.prompt(text)
        position = prompt.supervised[0][0] if prompt.targets else len(prompt.sequences[0]) - 1
        ids = list(prompt.sequences[0][: position + 1])
        examples.append({"row": row, "ids": ids, "position": position})
    return examples
