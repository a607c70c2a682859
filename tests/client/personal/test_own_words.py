"""A client's own words, mixed into a language model's probabilities."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import run_export
from federations import Live, Settings, config_of, loaded
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from residents import device_settings, resident

from samara.client.personal.own_words import (
    ORDER,
    OWN_WORDS_FILE,
    OwnText,
    OwnWords,
    OwnWordsFile,
    choose_own_words,
)
from samara.client.personal.runtime_learner import own_text
from samara.client.questions.client_model import ClientModel
from samara.client.trainer.remote_model import RemoteModel
from samara.client.trainer.trainer_service import serve_trainer
from samara.server.app import serve
from samara.shared.errors import ConfigError
from samara.shared.proto.trainer_pb2 import GenerateRequest
from samara.shared.protocol.frames.instructions import Split
from samara.shared.results.result import RunResult
from samara.simulations.comparison.columns import client_columns
from samara.simulations.comparison.comparison import compare_runs
from samara.simulations.experiments.passage_writer import write_missing_passages
from samara.simulations.exports.adapter import FinishedRun
from samara.simulations.report.html import page_of
from samara.simulations.simulate import simulate
from samara.simulations.writing.passages import read_passages

VOCABULARY = 8
CLIENT = 7
tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=8).map(tuple)
texts = st.lists(st.builds(OwnText, tokens, tokens), max_size=6).map(tuple)
weights = st.floats(0, 0.9)
logits = arrays(np.float64, VOCABULARY, elements=st.floats(-9, 9))


def model_of(raw: np.ndarray) -> np.ndarray:
    powers = np.exp(raw)
    return powers / powers.sum()


@given(texts, weights, weights, logits, tokens)
def test_a_mixture_is_a_distribution_and_that_of_the_evidence(
    own: tuple[OwnText, ...], share: float, trust: float, raw: np.ndarray, before: tuple[int, ...]
) -> None:
    words, model = OwnWords(own, share, trust), model_of(raw)
    mixed = words.mix(model, before)
    assert mixed.min() >= 0
    assert mixed.sum() == pytest.approx(1)
    for token in range(VOCABULARY):
        evidence = words.evidence(OwnText(before[1 - ORDER :], (token,)))
        told = evidence.mixed(model[[token]], share, trust)
        assert told[0] == pytest.approx(mixed[token])


@given(texts, logits, tokens)
def test_without_weight_the_mixture_is_the_model(
    own: tuple[OwnText, ...], raw: np.ndarray, before: tuple[int, ...]
) -> None:
    np.testing.assert_array_equal(OwnWords(own).mix(model_of(raw), before), model_of(raw))
    single = raw.astype(np.float32)
    assert OwnWords(own).mix_logits(single, before) is single


def test_counts_back_off_to_shorter_contexts_and_these_to_the_model() -> None:
    """Tokens 1, 2 are followed twice by 3 and once by 4. Elsewhere, 2 is followed once by 4."""
    own = OwnWords((OwnText((1,), (2, 3)), OwnText((1,), (2, 3)), OwnText((1,), (2, 4))), 0.5, 1.0)
    model = np.full(VOCABULARY, 1 / VOCABULARY)
    once = 0.5 * model[3] + 0.5 * 2 / 6
    twice = (2 + 2 * once) / (3 + 2)
    assert own.mix(model, (1, 2))[3] == pytest.approx((2 + 2 * twice) / (3 + 2))
    assert own.mix(model, (5, 6))[3] == pytest.approx(once)
    assert own.mix(model, ())[5] == pytest.approx(0.5 * model[5])
    np.testing.assert_allclose(
        own.mix_logits(np.log(model).astype(np.float32), (1, 2)),
        np.log(own.mix(model, (1, 2))),
        rtol=1e-6,
    )


def test_own_words_are_mixed_in_where_validation_texts_have_them() -> None:
    phrase = [OwnText((0,), (1, 2, 3))] * 3
    uniform = np.log(np.full(3, 1 / VOCABULARY))
    helps = choose_own_words(phrase, phrase, lambda _: uniform)
    assert helps.share > 0 or helps.trust > 0
    likely = helps.evidence(phrase[0]).mixed(np.exp(uniform), helps.share, helps.trust)
    assert np.all(likely > np.exp(uniform))
    others = [OwnText((0,), (5, 6, 7)), OwnText((4,), (7, 6, 5))]
    for validation in (others, phrase[:1], []):
        chosen = choose_own_words(phrase, validation, lambda _: uniform)
        assert chosen.change_nothing
        assert chosen.texts == tuple(phrase)
    assert choose_own_words([], phrase, lambda _: uniform).change_nothing


def test_one_text_that_gains_does_not_outweigh_the_others() -> None:
    """Only one text of several gains, so the mean gain is within one standard error."""
    phrase = OwnText((0,), (1, 2, 3))
    others = [OwnText((0,), (5, 6, 7))] * 3
    uniform = np.log(np.full(3, 1 / VOCABULARY))
    validation = [phrase, *others]
    losses = [
        -np.log(OwnWords((phrase,)).evidence(one).mixed(np.exp(uniform), 0.0, 1 / 4)).sum()
        for one in validation
    ]
    assert np.mean(losses) < -uniform.sum()  # it is the mean that gains
    assert choose_own_words([phrase], validation, lambda _: uniform).change_nothing


@pytest.mark.parametrize(
    "damage",
    [
        {"share": 1.0},
        {"trust": -1.0},
        {"trust": float("nan")},
        {"texts": [[[1], [0.5]]]},
        {"texts": [[[1], [-1]]]},
        {"texts": [[1]]},
    ],
)
def test_damaged_own_words_are_left_out(damage: dict[str, Any], tmp_path: Path) -> None:
    OwnWordsFile(tmp_path).write(OwnWords((OwnText((1,), (2,)),), 0.5, 0.25, "ab"))
    sound = OwnWordsFile(tmp_path).read()
    assert sound == OwnWords((OwnText((1,), (2,)),), 0.5, 0.25, "ab")
    file = tmp_path / OWN_WORDS_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    assert OwnWordsFile(tmp_path).read() is None


@pytest.mark.parametrize("stream", ["off", "host"])
def test_a_run_compares_personal_models_with_own_words(
    writers: Settings, stream: str, tmp_path: Path
) -> None:
    folder = simulate(config_of(writers, evaluate__passages=1, model__stream=stream))
    columns = client_columns(RunResult.read(folder))
    assert set(columns) >= {"personalized", "own words"}
    runtime, source = loaded(writers)
    run = FinishedRun.at(folder)
    for client in range(3):
        own = run.own_words(client)
        assert own is not None
        assert not own.change_nothing
        prompts = source.share_of(client, 3).tokenized(Split.TEST).prompts
        personal = runtime.perturbation(run.model(client))
        loss = count = 0
        for prompt in prompts:
            rows = np.concatenate(list(runtime.forward.answer_logits(personal, prompt)))
            for row, (before, token) in zip(rows, own_text(prompt).contexts(), strict=True):
                loss -= own.mix_logits(row, before)[token]
                count += 1
        assert columns["own words"][client].loss == pytest.approx(loss / count, rel=1e-4)
        assert columns["own words"][client].loss < columns["personalized"][client].loss
    kept = {file: file.read_bytes() for file in folder.glob(f"clients/*/{OWN_WORDS_FILE}")}
    assert len(kept) == 3
    write_missing_passages(folder)
    assert all("own words" in one.greedy for one in read_passages(folder))
    assert "own words" in page_of(compare_runs([folder]))


def test_a_live_clients_owner_is_answered_in_own_words(
    writers: Settings, short: Path, tmp_path: Path
) -> None:
    trainer, socket = resident(writers, CLIENT, short), short / "t.sock"
    theirs = {"out": str(tmp_path / "run"), "cohort.available": 1}
    config = config_of(writers | theirs, evaluate__every=0)
    request = {"model": "personal", "prompt": "the meal", "max_tokens": 6}

    async def written() -> str:
        async with RemoteModel(socket) as model:
            parts = [part async for part in model.generate(GenerateRequest(**request))]
        return "".join(part.text for part in parts)

    device_settings(writers, CLIENT, short).write()
    with serve_trainer(lambda: trainer, socket):
        serve(config, Live([socket], config))
        own = ClientModel.read(short, trainer.config, CLIENT).own_words
        assert own is not None
        assert not own.change_nothing
        mixed = asyncio.run(written())
        [file] = short.glob(f"runs/*/clients/{CLIENT}/{OWN_WORDS_FILE}")
        exported = run_export(short, tmp_path / "peft")
        assert exported.exit_code == 0, exported.output
        file.unlink()
        assert asyncio.run(written()) != mixed
    assert OwnWordsFile(tmp_path / "peft").read() == own
    assert OWN_WORDS_FILE in (tmp_path / "peft" / "README.md").read_text()


def test_own_words_are_for_texts_and_personal_models(writers: Settings, settings: Settings) -> None:
    with pytest.raises(ConfigError, match="a label is not text that the owner wrote"):
        loaded(settings | {"personal.own-words": True, "personal.rounds": 1})
    for changes in ({"method": "global"}, {"method": "finetune", "personal.rounds": 0}):
        with pytest.raises(ConfigError, match="there is no personal model"):
            config_of(writers | changes)
