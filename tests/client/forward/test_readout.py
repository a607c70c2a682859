"""Readout adapters: the model runs once per example, and a query is a small product."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Settings, config_of, grid_of, ledger_of, loaded, serve_until_killed
from helpers import files_of, instruction_with
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy.special import softmax

from samara.client.forward.grouping import Schedule
from samara.client.forward.readout import ReadoutForward, run_base
from samara.client.forward.resident import ResidentForward
from samara.client.forward.setup import EVALUATION_MICRO_BATCH
from samara.client.personal.readout_file import READOUT_FILE
from samara.client.streaming.stream import BlockStream
from samara.client.training.local_steps import take_local_steps, take_local_steps_together
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.server.app import serve
from samara.shared.errors import ConfigError
from samara.shared.model.perturbations import Perturbations
from samara.shared.protocol.directions import directions
from samara.shared.protocol.frames.instructions import Split, TrainInstruction
from samara.shared.protocol.layout import READOUT_GROUP, Layout
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.protocol.round_delta import RoundDelta
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.shared.settings.features import check_features
from samara.shared.tasks.contrasts import contrasts
from samara.simulations.exports.adapter import FinishedRun, export
from samara.simulations.exports.quick_look import quick_look
from samara.simulations.simulate import simulate

ModelFolder = Callable[[str], Path]
FAMILIES = ("causal", "masked", "encoder")


def perturbed(runtime: ModelRuntime, clients: int = 1, queries: int = 3) -> Perturbations:
    layout = runtime.layout
    center = np.random.default_rng(0).normal(0, 0.1, (clients, layout.size)).astype(np.float32)
    seeds = np.arange(clients * queries, dtype=np.uint64)
    z = directions(seeds, layout.size, layout.distribution).reshape(clients, queries, -1)
    if clients == 1:
        center, z = center[0], z[0]
    return Perturbations.from_arrays(layout, center, z, 0.05)


def state_of(runtime: ModelRuntime) -> NDArray[np.int64]:
    values = np.random.default_rng(1).normal(0, 0.3, runtime.layout.size)
    return (values * 2.0**51).astype(np.int64)


def test_contrasts_are_orthonormal_and_without_a_mean() -> None:
    for labels in (2, 3, 6):
        basis = contrasts(labels)
        assert basis.shape == (labels - 1, labels)
        np.testing.assert_allclose(basis @ basis.T, np.eye(labels - 1), atol=1e-6)
        np.testing.assert_allclose(basis.sum(axis=1), 0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_weights_it_is_the_base_model_bit_for_bit(
    family: str, readout: Settings, model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samara.shared.settings.config.TRUNK_CACHE_BYTES", 0)
    settings = readout | {"model.path": str(model_folder(family))}
    inside = loaded(settings, adapter__layers="top:1")
    run = loaded(settings, micro_batch=EVALUATION_MICRO_BATCH)
    prompts = run.data.share_of(0, 3).tokenized(Split.VALIDATION).prompts
    theirs = inside.data.share_of(0, 3).tokenized(Split.VALIDATION).prompts
    assert prompts == theirs
    expected = inside.runtime.scores(zero_state(inside.runtime.layout.size), theirs)
    found = run.runtime.scores(zero_state(run.runtime.layout.size), prompts)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label_bias", [False, True])
def test_scores_are_those_of_each_perturbation_by_itself(
    family: str, label_bias: bool, readout: Settings, model_folder: ModelFolder
) -> None:
    run = loaded(
        readout | {"model.path": str(model_folder(family)), "adapter.label-bias": label_bias}
    )
    runtime = run.runtime
    prompts = run.data.share_of(0, 3).tokenized(Split.TRAIN).prompts
    runtime.prepare(prompts)
    forward = runtime.forward
    assert isinstance(forward, ReadoutForward)
    perturbations = perturbed(runtime)
    scores = forward.scores(perturbations, prompts)
    features, base = runtime.features(prompts), forward.base_scores(prompts)
    weights = perturbations.tensor("readout").numpy().astype(np.float64)
    assert weights.shape == (6, 1, 32)
    for index in range(perturbations.count):
        expected = base + features @ weights[index].T @ contrasts(2)
        if label_bias:
            expected += perturbations.tensor("label bias")[index, :, 0].numpy()
        np.testing.assert_allclose(scores[index], expected, rtol=0, atol=2e-5)


def test_all_examples_of_a_split_have_the_rows_of_each_of_them(readout: Settings) -> None:
    run = loaded(readout)
    prompts = run.data.share_of(0, 3).tokenized(Split.TRAIN).prompts
    run.runtime.prepare(prompts)
    forward = run.runtime.forward
    assert isinstance(forward, ReadoutForward)
    whole, features = forward.base_scores(prompts), forward.features(prompts)
    np.testing.assert_array_equal(whole[::-1], forward.base_scores(prompts[::-1]))
    np.testing.assert_array_equal(features[::-1], forward.features(prompts[::-1]))
    kept = whole.copy()
    whole += 1.0  # what was given belongs to whoever asked
    np.testing.assert_array_equal(forward.base_scores(prompts), kept)
    assert run.runtime.passes == len(prompts)


def test_more_than_two_labels(settings: Settings, tmp_path: Path) -> None:
    words = ["good", "bad", "fine", "cold", "warm", "rude"]
    rows = [{"text": f"the film was {words[i % 6]}", "label": i % 6} for i in range(60)]
    data = tmp_path / "six.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tmp_path / "six.toml"
    task.write_text(
        'name = "six"\ntext = "{text}"\nquestion = " it was {word} ."\n'
        f"words = {json.dumps(words)}\nlabels = [0, 1, 2, 3, 4, 5]\n"
    )
    changes = {"adapter.layers": "readout", "task": str(task), "data.path": str(data)}
    run = loaded(settings | changes)
    assert [t.rows for t in run.runtime.layout.group(READOUT_GROUP)] == [5]
    prompts = run.data.share_of(0, 3).tokenized(Split.TRAIN).prompts
    state = state_of(run.runtime)
    scores = run.runtime.scores(state, prompts)
    shift = scores - run.runtime.scores(zero_state(len(state)), prompts)
    np.testing.assert_allclose(shift.sum(axis=1), 0, atol=1e-4)
    assert np.abs(shift).max() > 0.1


def test_clients_that_share_a_product_get_their_own_scores(readout: Settings) -> None:
    run = loaded(readout)
    runtime = run.runtime
    splits = [run.data.share_of(client, 3).tokenized(Split.TRAIN).prompts for client in (0, 1)]
    for prompts in splits:
        runtime.prepare(prompts)
    both = perturbed(runtime, clients=2)
    together = runtime.forward.scores(both, [*splits[0][:7], *splits[1][:7]])
    for client, prompts in enumerate(splits):
        assert both.directions is not None
        alone = replace(both, center=both.center[client], directions=both.directions[client])
        scores = runtime.forward.scores(alone, prompts[:7])
        np.testing.assert_allclose(together[:, 7 * client :][:, :7], scores, atol=1e-5)


def test_a_step_does_not_depend_on_what_is_kept(
    readout: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of a split are the same after an eviction, from a subset and in another order."""
    plain = loaded(readout)
    monkeypatch.setattr("samara.shared.settings.config.TRUNK_CACHE_BYTES", 1)
    forgetful = loaded(readout)
    splits = {}
    for name, run in (("plain", plain), ("forgetful", forgetful)):
        splits[name] = [run.data.share_of(c, 3).tokenized(Split.TRAIN).prompts for c in range(3)]
        for prompts in splits[name]:
            run.runtime.prepare(prompts)
    for client in (0, 2, 1, 0):
        rows = [5, 3, 11, 0]
        wanted, found = (
            run.runtime.features([splits[name][client][row] for row in rows])
            for name, run in (("plain", plain), ("forgetful", forgetful))
        )
        np.testing.assert_array_equal(found, wanted)
    examples = sum(map(len, splits["plain"]))
    assert plain.runtime.passes == examples
    assert forgetful.runtime.passes > examples


def test_the_model_runs_once_per_example(readout: Settings) -> None:
    run = loaded(readout)
    data = run.data.share_of(0, 3)
    state = zero_state(run.runtime.layout.size)
    for _ in range(3):
        take_local_steps(run.runtime, data, instruction_of(run.runtime, state), state)
    assert run.runtime.passes == len(data.tokenized(Split.TRAIN).labels)
    inside = loaded(readout, adapter__layers="top:1")
    zero = zero_state(inside.runtime.layout.size)
    instruction = instruction_of(inside.runtime, zero, batch=4)
    take_local_steps(inside.runtime, inside.data.share_of(0, 3), instruction, zero)
    assert inside.runtime.passes == instruction.steps * 2 * instruction.queries * 4


def instruction_of(
    runtime: ModelRuntime, state: NDArray[np.int64], **changes: Any
) -> TrainInstruction:
    layout_hash = runtime.layout.hash
    fields = {"batch": 1000} | changes
    instruction: TrainInstruction = instruction_with(
        layout_hash=layout_hash, start_digest=digest(layout_hash, state), **fields
    )
    return instruction


def test_clients_that_step_together_step_as_alone(readout: Settings) -> None:
    run = loaded(readout)
    state = state_of(run.runtime)
    instruction = instruction_of(run.runtime, state)
    shares = [run.data.share_of(client, 3) for client in range(3)]
    together = take_local_steps_together(run.runtime, shares, instruction, state)
    for share, report in zip(shares, together, strict=True):
        alone = take_local_steps(run.runtime, share, instruction, state)
        np.testing.assert_allclose(report.gradients, alone.gradients, atol=1e-3)  # type: ignore[union-attr]


@pytest.mark.parametrize("layers", ["readout", "readout,top:2"])
def test_a_streamed_model_gives_the_same_bits(layers: str, readout: Settings) -> None:
    reports = []
    for stream in ("off", "disk"):
        run = loaded(readout, adapter__layers=layers, model__stream=stream, micro_batch=3)
        state = state_of(run.runtime)
        instruction = instruction_of(run.runtime, state, batch=8)
        report = take_local_steps(run.runtime, run.data.share_of(0, 3), instruction, state)
        reports.append(report.encode())
    assert reports[0] == reports[1]


def blocks_loaded(stream: BlockStream) -> int:
    """Return the number of blocks loaded so far, while no block is being read ahead."""
    stream.free_buffers()
    return stream.statistics.blocks


@pytest.mark.parametrize("unit", [256, 16])
def test_a_streamed_model_is_read_once_per_unit_of_examples(
    unit: int, readout: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all rounds and steps, each example runs only once through a model larger than memory."""
    streams: list[BlockStream] = []
    plain = BlockStream.__init__

    def begin(stream: BlockStream, *rest: Any, **options: Any) -> None:
        plain(stream, *rest, **options)
        streams.append(stream)

    monkeypatch.setattr(BlockStream, "__init__", begin)
    monkeypatch.setattr("samara.client.forward.readout.UNIT", unit)
    runtime, source = loaded(readout, model__stream="disk", adapter__damping="none")
    data, state = source.share_of(0, 3), zero_state(runtime.layout.size)
    examples = len(data.tokenized(Split.TRAIN).labels)
    (stream,) = streams
    loads = [blocks_loaded(stream)]
    for number in (1, 2, 3):
        instruction = instruction_of(runtime, state, round=number)
        take_local_steps(runtime, data, instruction, state)
        loads.append(blocks_loaded(stream))
    assert (data.passes, runtime.passes) == (examples, examples)
    blocks, units = 3, -(-examples // unit)
    first_pass = loads[1] - loads[0]
    assert first_pass - blocks * units in (0, 1)  # one more may be read ahead at the end
    assert loads[1:] == [loads[1]] * 3


def test_beside_adapters_it_reads_what_they_give(readout: Settings) -> None:
    """With B = 0 inside the model, a readout beside adapters equals a readout alone."""
    alone, beside = loaded(readout), loaded(readout, adapter__layers="readout,top:1")
    prompts = alone.data.share_of(0, 3).tokenized(Split.VALIDATION).prompts
    assert isinstance(beside.runtime.forward, ResidentForward)
    whole = zero_state(beside.runtime.layout.size)
    part = state_of(alone.runtime)
    whole[beside.runtime.layout.tensor_slice("readout")[0]] = part
    np.testing.assert_allclose(
        beside.runtime.scores(whole, prompts), alone.runtime.scores(part, prompts), atol=1e-4
    )
    with pytest.raises(ConfigError, match=r"set adapter\.layers to readout"):
        beside.runtime.features(prompts)


def test_exact_gradients_are_the_limit_of_differences(readout: Settings) -> None:
    run, exact = loaded(readout), loaded(readout, gradients="exact")
    state = state_of(run.runtime)
    instruction = instruction_of(run.runtime, state, steps=1)
    one, other = (
        take_local_steps(each.runtime, each.data.share_of(0, 3), instruction, state).gradients
        for each in (run, exact)
    )
    np.testing.assert_allclose(one, other, atol=2e-3)


def test_an_interrupted_run_has_the_same_bits(readout: Settings, tmp_path: Path) -> None:
    settings = readout | {"personal.rounds": 1, "learning-rate": "auto", "rounds": 4}
    whole = simulate(config_of(settings, out=str(tmp_path / "whole")))
    config = config_of(settings, out=str(tmp_path / "killed"))
    serve_until_killed(config, 8)
    serve(config, grid_of(config))
    assert ledger_of(Path(config.out)) == ledger_of(whole)
    personal = Path("clients") / "1" / "personal.ledger"
    assert files_of(Path(config.out) / personal) == files_of(whole / personal)


def test_a_result_counts_passes(readout: Settings, tmp_path: Path) -> None:
    result = RunResult.read(simulate(config_of(readout, out=str(tmp_path / "readout"))))
    assert result.passes == {client: facts.examples for client, facts in result.clients.items()}
    inside = config_of(readout, adapter__layers="top:1", batch=4, out=str(tmp_path / "inside"))
    result = RunResult.read(simulate(inside))
    assert set(result.passes.values()) == {3 * 2 * 2 * 2 * 4}
    assert result.mean_passes == 96


def test_a_resumed_run_counts_the_first_passes_once(
    readout: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(readout, out=str(tmp_path / "killed"))
    plain = Ledger.append

    def dies(ledger: Ledger, delta: RoundDelta) -> int:
        if delta.round == 2:
            raise KeyboardInterrupt
        return plain(ledger, delta)

    with monkeypatch.context() as dying:
        dying.setattr(Ledger, "append", dies)
        with pytest.raises(KeyboardInterrupt):
            simulate(config)
    result = RunResult.read(simulate(config))
    assert result.passes == {client: facts.examples for client, facts in result.clients.items()}


def test_a_cache_on_disk_changes_no_bit(readout: Settings, tmp_path: Path) -> None:
    folders = [simulate(config_of(readout, out=str(tmp_path / "plain")))]
    for name in ("first", "second"):
        config = config_of(
            readout, out=str(tmp_path / name), trunk_cache_folder=str(tmp_path / "kept")
        )
        folders.append(simulate(config))
    assert len({json.dumps(_digests(folder)) for folder in folders}) == 1


def _digests(folder: Path) -> list[str]:
    return [entry.digest for entry in RunResult.read(folder).rounds]


def test_what_is_on_disk_needs_no_pass(readout: Settings, tmp_path: Path) -> None:
    cached = readout | {"trunk-cache-folder": str(tmp_path / "kept")}
    for passes in (True, False):
        run = loaded(cached)
        run.runtime.prepare(run.data.share_of(0, 3).tokenized(Split.TRAIN).prompts)
        assert bool(run.runtime.passes) is passes


@pytest.mark.parametrize(
    "method", ["local", "finetune", "global", "ditto", "mixture", "partial", "cluster"]
)
def test_every_method_works_on_the_embedded_model(method: str, tmp_path: Path) -> None:
    own: dict[str, Any] = {
        "method": method,
        "adapter.layers": "readout",
        "adapter.label-bias": True,
        "personal.part": "readout",
        "data.clients": 3,
        "rounds": 2,
        "personal.rounds": 2,
        "steps": 2,
        "queries": 4,
        "batch": 100_000,
        "cohort.clustering-rounds": 1,
        "evaluate.every": 0,
        "threads": 1,
        "out": str(tmp_path / "run"),
    }
    result = RunResult.read(simulate(RunConfig.of(own, "test")))
    assert not any(event.refused for event in [*result.rounds, *result.evaluations])
    assert result.elements == Layout.from_json((tmp_path / "run" / "layout.json").read_text()).size


def test_there_is_none_where_rows_have_their_own_labels(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="whole vocabulary"):
        check_features({"adapter": "readout", "task": "generation"})
    with pytest.raises(ConfigError, match="no such file"):
        loaded(settings | {"adapter.layers": "readout", "adapter.damping": str(tmp_path / "x")})


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_readout_gives_the_same_scores(
    family: str, readout: Settings, model_folder: ModelFolder, tmp_path: Path
) -> None:
    settings = readout | {
        "model.path": str(model_folder(family)),
        "adapter.label-bias": True,
        "rounds": 2,
    }
    config = config_of(settings)
    folder = simulate(config)
    assert export(folder, None, tmp_path / "out") == {}
    exported = load_file(tmp_path / "out" / READOUT_FILE)
    runtime, source = load_run(config)
    prompts = source.share_of(0, 3).tokenized(Split.TEST).prompts
    state = FinishedRun.at(folder).model()
    forward = runtime.forward
    assert isinstance(forward, ReadoutForward)
    rows = run_base(forward._engine, prompts, 16)
    expected = rows[:, :2] + rows[:, 2:] @ exported["weight"].numpy().T + exported["bias"].numpy()
    found = runtime.scores(state, prompts)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.abs(found - rows[:, :2]).max() > 1e-3
    text = source.share_of(0, 3).in_split(Split.TEST)[0].text
    _, models = quick_look(folder, text)
    np.testing.assert_allclose(models["global"], softmax(found[0].astype(np.float64)), atol=1e-4)


def test_a_memory_budget_cuts_the_first_pass(readout: Settings) -> None:
    plain = loaded(readout, micro_batch=16, grouping="auto").runtime
    assert plain.schedule == Schedule("both", 16)
    small = loaded(readout, micro_batch=16, memory_budget=200_000).runtime
    assert 1 <= small.schedule.micro_batch < 16
    with pytest.raises(ConfigError, match="a pass of one example needs"):
        _ = loaded(readout, memory_budget=10, rounds=5).runtime.schedule
