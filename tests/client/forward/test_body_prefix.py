"""The first tokens of a task's prompts run once; the results equal those of whole passes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from tiny_models import ARCHITECTURES, SIZES, save_tokenizer

from samara.client.forward.body import PerturbedBody
from samara.client.forward.readout import make_base_engine, run_base
from samara.client.forward.representation_store import make_representation_store
from samara.client.forward.resident import ResidentForward
from samara.client.forward.setup import make_forward, make_scorer
from samara.client.forward.trunk_cache import TrunkCache
from samara.client.streaming.loading import load_model
from samara.client.streaming.stream import BlockStream
from samara.devices.phone.export import ProgramShapes, export_program
from samara.shared.errors import ConfigError, ModelError
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.lora_fa import inject
from samara.shared.model.scorers import Prompt, Scorer
from samara.shared.settings.sections import AdapterSettings, ModelSettings
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask

TEMPLATE = (
    "<s> the day was very good [SEP]{% for m in messages %} [CLS] the {{ m['role'] }} was "
    "{{ m['content'] }} .{% endfor %}{% if add_generation_prompt %} [CLS] the assistant was "
    "{% endif %}"
)
PREFIX = 8
ROTATED = 40
"""Number of tokens after which the rotation changes."""
FILMS = ClassificationTask(
    name="films",
    text="{text}",
    question=" it was {word} .",
    words=("bad", "good"),
    labels=(("0",), ("1",)),
    form="chat",
)
LONG_WORDS = FILMS.model_copy(update={"words": ("bad", "very good")})
THINGS = ChoiceTask(
    kind="choice",
    name="things",
    text="the {text} was {candidate}",
    candidates=("{one}", "{other}"),
    form="chat",
)
TEXTS = ("a warm film", "", "  . ! it was a day", "walk", "not the meal . a very very kind walk")
OTHERS: dict[str, Callable[[int], Any]] = {
    "sliding window": lambda v: transformers.MistralForCausalLM(
        transformers.MistralConfig(vocab_size=v, num_key_value_heads=2, sliding_window=4, **SIZES)
    ),
    "recurrent": lambda v: transformers.MambaForCausalLM(
        transformers.MambaConfig(vocab_size=v, hidden_size=32, num_hidden_layers=2, state_size=4)
    ),
    "dynamic rotation": lambda v: rotating(v, rope_type="dynamic", factor=2.0),
    "long rotation": lambda v: rotating(
        v,
        rope_type="longrope",
        factor=8.0,
        short_factor=[1.0] * 4,
        long_factor=[1.0, 2.0, 4.0, 8.0],
        original_max_position_embeddings=ROTATED,
    ),
}


def rotating(vocabulary: int, **parameters: Any) -> Any:
    """A Llama whose rotary frequencies depend on the number of tokens in a pass."""
    parameters |= {"rope_theta": 10000.0}
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=vocabulary, rope_parameters=parameters, **SIZES)
    )


def with_template(base: BaseModel) -> BaseModel:
    base.tokenizer.chat_template = TEMPLATE
    return base


def saved(folder: Path, build: Callable[[int], Any]) -> BaseModel:
    torch.manual_seed(0)
    build(save_tokenizer(folder, "causal")).save_pretrained(folder)
    return with_template(load_base_model(str(folder)))


def tokens(count: int) -> tuple[int, ...]:
    return tuple(6 + index % 20 for index in range(count))


def prompts_of(scorer: Scorer) -> list[Prompt]:
    return [scorer.prompt(text, ("bad", "very good")) for text in TEXTS]


def without_prefix(engine: ResidentForward) -> ResidentForward:
    engine._body._prefix = ()
    return engine


@contextmanager
def counted(base: BaseModel) -> Iterator[list[int]]:
    """Record the number of tokens of every pass of the body."""
    found: list[int] = []

    def record(_: Any, args: Any, kwargs: dict[str, Any]) -> None:
        found.append((args[0] if args else kwargs["input_ids"]).shape[1])

    handle = base.body.register_forward_pre_hook(record, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()


def both(base: BaseModel, task: Any) -> tuple[NDArray[np.float32], NDArray[np.float32], list[int]]:
    """Scores and representations after the prefix and of whole passes, and the tokens read."""
    scorer = make_scorer(base, task, 40)
    prompts = prompts_of(scorer)
    engine = make_base_engine(base, scorer, False)
    run_base(engine, prompts, 2)
    with counted(base) as tokens:
        found = run_base(engine, prompts, 2)
    return (
        found,
        run_base(without_prefix(make_base_engine(base, scorer, False)), prompts, 2),
        tokens,
    )


@pytest.mark.parametrize("task", [FILMS, LONG_WORDS, THINGS], ids=lambda task: task.name)
@pytest.mark.parametrize("name", [*(n for n, a in ARCHITECTURES.items() if a[0] == "causal")])
def test_tokens_after_the_prefix_alone_run(name: str, task: Any, tmp_path: Path) -> None:
    base = saved(tmp_path, ARCHITECTURES[name][1])
    found, wanted, counts = both(base, task)
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    longest = max(len(ids) for p in prompts_of(make_scorer(base, task, 40)) for ids in p.sequences)
    assert max(counts) == longest - PREFIX


@pytest.mark.parametrize("quantization", ["none", "nf4", "int8"])
@pytest.mark.parametrize("task", [FILMS, LONG_WORDS], ids=["one token", "more tokens"])
def test_streamed_blocks_give_the_same_bits(
    quantization: Any,
    task: Any,
    model_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = str(model_folder("causal"))
    found = []
    for stream in ("off", "disk"):
        loaded = load_model(ModelSettings(path=folder, stream=stream, quantization=quantization))
        base = with_template(loaded.base)
        kept = loaded.store and BlockStream(base, loaded.store)
        scorer = make_scorer(base, task, 40)
        engine = make_base_engine(base, scorer, kept is not None)
        found.append(run_base(engine, prompts_of(scorer), 2))
        assert engine._body._prefix_read is not None
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_cannot_continue_a_prefix_stays_whole(name: str, tmp_path: Path) -> None:
    found, wanted, counts = both(saved(tmp_path, OTHERS[name]), FILMS)
    np.testing.assert_array_equal(found, wanted)
    assert max(counts) > PREFIX + 10


@pytest.mark.parametrize("family", ["masked", "encoder"])
def test_a_model_that_reads_both_ways_stays_whole(
    family: str, model_folder: Callable[[str], Path]
) -> None:
    base = load_base_model(str(model_folder(family)))
    sequences, read = [(2, 6, 7, 8, 3), (2, 6, 7, 3)], [(3,), (3,)]
    with torch.inference_mode():
        found = PerturbedBody(base, 0, prefix=(2, 6))(sequences, 1, read)
        wanted = PerturbedBody(base, 0)(sequences, 1, read)
    torch.testing.assert_close(found[:, 3], wanted[:, 3], rtol=0, atol=0)


@pytest.mark.parametrize("form", ["plain", "chat"])
def test_prompts_without_a_prefix_stay_whole(
    form: str, model_folder: Callable[[str], Path]
) -> None:
    base = with_template(load_base_model(str(model_folder("causal"))))
    for special in ("<s> ", "[SEP]", "[CLS]"):
        base.tokenizer.chat_template = base.tokenizer.chat_template.replace(special, "")
    found, wanted, _ = both(base, FILMS.model_copy(update={"form": form}))
    np.testing.assert_array_equal(found, wanted)


def test_adapters_inside_the_model_need_whole_passes(model_folder: Callable[[str], Path]) -> None:
    base = with_template(load_base_model(str(model_folder("causal"))))
    scorer = make_scorer(base, FILMS, 40)
    adapter = inject(base, AdapterSettings(layers="top:1", rank=2), 2)
    engine = make_forward(
        base, FILMS, scorer, lambda example: scorer.prompt(example.text), adapter, "none"
    )
    assert isinstance(engine, ResidentForward)
    assert engine._body._prefix == ()


def test_stored_representations_of_whole_passes_are_not_used(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    base = with_template(load_base_model(str(model_folder("causal"))))
    scorer = make_scorer(base, FILMS, 40)
    whole = make_scorer(base, FILMS, 40)
    whole.prefix = ()

    def disk(own: Scorer) -> TrunkCache:
        store = make_representation_store(base, own, 2**20, tmp_path)
        assert store.disk is not None
        return store.disk

    stored = torch.ones(1, scorer.labels + base.features)
    disk(whole).put((1, 2), stored)
    assert disk(whole).get((1, 2)) is not None
    assert len(scorer.prefix) == PREFIX
    assert disk(scorer).get((1, 2)) is None


def test_a_text_goes_on_beyond_the_length_at_which_its_rotation_changes(tmp_path: Path) -> None:
    """All keys change there, so one pass reads the whole text again; the others read one token."""
    base = saved(tmp_path, OTHERS["long rotation"])
    body, text, cache = PerturbedBody(base, 0), list(tokens(ROTATED - 2)), None
    with torch.inference_mode():
        body.continue_texts([text])  # runs the probe
        read = []
        for _ in range(5):
            given = text if cache is None else text[-1:]
            read.append(len(given))
            found, cache = body.continue_texts([given], cache)
            whole = base.body(input_ids=torch.tensor([text])).last_hidden_state[:, -1]
            np.testing.assert_allclose(found, whole, atol=2e-5)
            text.append(7)
    assert read == [ROTATED - 2, 1, 1, ROTATED + 1, 1]


def test_texts_that_change_the_rotation_of_others_are_refused(tmp_path: Path) -> None:
    """A longer text would change the loss of the texts beside it."""
    base = saved(tmp_path, OTHERS["long rotation"])
    body, short = PerturbedBody(base, 0), tokens(14)
    longer = tokens(ROTATED + 1)
    with torch.inference_mode():
        alone = body([short])
        beside = body([short, longer[:-1]])[:1, : len(short)]
        np.testing.assert_allclose(beside, alone, atol=2e-6)
        assert abs(body([short, longer])[:1, : len(short)] - alone).max() > 1e-4
    assert make_scorer(base, FILMS, ROTATED).max_length == ROTATED
    with pytest.raises(ModelError, match=f"set model.max-length to at most {ROTATED}"):
        make_scorer(base, FILMS, ROTATED + 1)
    ready: Any = SimpleNamespace(base=base)
    with pytest.raises(ConfigError, match=f"reads at most {ROTATED} tokens"):
        export_program(ready, ProgramShapes(1, 1, ROTATED + 1), "none", "none", tmp_path / "p")


def test_a_dynamic_rotation_does_not_change_within_the_context(tmp_path: Path) -> None:
    base = saved(tmp_path, OTHERS["dynamic rotation"])
    body, short = PerturbedBody(base, 0), tokens(14)
    longest = tokens(base.context)
    with torch.inference_mode():
        beside = body([short, longest])[:1, : len(short)]
        np.testing.assert_allclose(beside, body([short]), atol=2e-6)
    assert make_scorer(base, FILMS, base.context).max_length == base.context
