"""Federations in a basis: forward passes under B = U·θ, resume, verify, catch-up and export."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from bases import basis_for
from federations import Settings, config_of, ledger_of, serve_until_killed

from samara.client.forward.grouping import Schedule
from samara.client.personal.private_rounds import personal_ledger
from samara.client.training.client_data import ClientData
from samara.client.training.local_steps import take_local_steps_together
from samara.client.training.model_runtime import LoadedRun, load_run
from samara.client.tuning.settings import TuneSettings
from samara.devices.phone.export import prepare_model
from samara.server.store import read_layout, replay_run
from samara.shared.errors import ConfigError, SamaraError
from samara.shared.model.loading import load_base_model
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.protocol.basis import read_basis
from samara.shared.protocol.directions import directions
from samara.shared.protocol.frames.instructions import SeedPolicy, Split, TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import digest, rebuild, replay, zero_state
from samara.shared.results.result import RunResult
from samara.shared.settings.runs import client_folder
from samara.shared.storage.blob_store import BlobStore
from samara.simulations.exports.adapter import FinishedRun, diff, export
from samara.simulations.exports.quick_look import quick_look
from samara.simulations.simulate import simulate

SIZE = 12


@pytest.fixture
def informed(settings: Settings, tmp_path: Path) -> Settings:
    return settings | {
        "adapter.basis": basis_for(settings, tmp_path, SIZE),
        "adapter.label-bias": True,
    }


def random_state(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**49), 2**49, size)


def prompts_of(run: LoadedRun, client: int, count: int) -> list:
    return list(run.data.share_of(client, 3).tokenized(Split.TRAIN).prompts[:count])


def test_perturbed_passes_are_those_of_the_lifted_adapter(informed: Settings) -> None:
    """One pass under U·(θ ± εz) of two clients equals separate passes with each B."""
    run = load_run(config_of(informed))
    runtime, layout, epsilon = run.runtime, run.runtime.layout, 0.25
    assert layout.size == SIZE + 2
    states = [random_state(layout.size, seed) for seed in range(2)]
    z = directions(np.arange(6, dtype=np.uint64), layout.size, "gaussian").reshape(2, 3, -1)
    centers = np.stack([runtime.weight_map.weights(state) for state in states])
    together = Perturbations(
        layout, torch.from_numpy(centers), runtime.weight_map.directions(z), epsilon
    )
    prompts = [prompts_of(run, client, 2) for client in range(2)]
    both = [prompt for own in prompts for prompt in own]
    scores = runtime.forward.scores(together, both, Schedule("both"), whole=True)
    for client, state in enumerate(states):
        for index, (sign, query) in enumerate((s, q) for s in (1, -1) for q in range(3)):
            step = np.rint(z[client, query] * epsilon * 2.0**40).astype(np.int64)
            expected = runtime.scores(state + sign * step, prompts[client])
            np.testing.assert_allclose(
                scores[index, 2 * client : 2 * client + 2], expected, rtol=2e-4, atol=2e-5
            )


def test_the_label_bias_keeps_its_own_coordinates(informed: Settings) -> None:
    run = load_run(config_of(informed))
    state, prompts = zero_state(SIZE + 2), prompts_of(run, 0, 3)
    state[SIZE:] = 2**51, -(2**51)
    moved = run.runtime.scores(state, prompts) - run.runtime.base_scores(prompts)
    np.testing.assert_allclose(moved, np.tile([1.0, -1.0], (3, 1)), atol=1e-4)


@pytest.mark.parametrize("gradients", ["differences", "exact"])
def test_clients_that_share_passes_report_as_clients_alone(
    gradients: str, informed: Settings
) -> None:
    run = load_run(config_of(informed, gradients=gradients))
    runtime, state = run.runtime, random_state(SIZE + 2)
    instruction = TrainInstruction(
        run_id=bytes(8),
        round=1,
        track=0,
        steps=2,
        queries=2,
        batch=4,
        seed_policy=SeedPolicy.INDEPENDENT,
        root=5,
        epsilon=0.01,
        learning_rate=0.1,
        clip=0.0,
        deadline=0.0,
        layout_hash=runtime.layout.hash,
        start_digest=digest(runtime.layout.hash, state),
    )
    clients = [run.data.share_of(client, 3) for client in range(3)]

    def reports(some: list[ClientData]) -> list[Report]:
        taken = take_local_steps_together(runtime, some, instruction, state)
        assert all(isinstance(report, Report) for report in taken)
        return taken  # type: ignore[return-value]

    alone = [reports([client])[0] for client in clients]
    for one, other in zip(reports(clients), alone, strict=True):
        np.testing.assert_allclose(one.gradients, other.gradients, rtol=0.02, atol=2e-3)


def test_exact_derivatives_are_the_limit_of_differences(informed: Settings) -> None:
    gradients = {}
    for kind in ("differences", "exact"):
        config = config_of(informed, gradients=kind, epsilon=1e-3, rounds=1, steps=1)
        config = config.with_values({"out": config.out + kind})
        (record,) = read_ledger(simulate(config) / "ledger")
        gradients[kind] = np.concatenate(
            [block.coefficients * 2.0**block.shift for _, block in record.delta.scalar_groups()]
        )
    size = float(np.abs(gradients["exact"]).max())
    np.testing.assert_allclose(gradients["differences"], gradients["exact"], atol=0.05 * size)


def test_a_federation_replays_resumes_and_catches_up(informed: Settings, tmp_path: Path) -> None:
    config = config_of(informed, cohort__fraction=0.4, rounds=5, ledger__snapshot_every=0)
    whole = simulate(config)
    layout = read_layout(whole)
    assert layout.basis == read_basis(config.adapter.basis).reference
    assert layout.size == SIZE + 2
    assert RunResult.read(whole).evaluations[-1].refused == {}
    records = list(read_ledger(whole / "ledger"))
    entries = [group for record in records for group in record.delta.scalar_groups()]
    *_, last = verify_ledger(whole / "ledger", layout)
    *_, replayed = replay_run(whole)
    np.testing.assert_array_equal(last.state, replayed.state)
    np.testing.assert_array_equal(
        last.state, rebuild(zero_state(layout.size), entries, layout.distribution)
    )
    np.testing.assert_array_equal(
        last.state, replay(zero_state(layout.size), entries, layout.distribution)
    )
    snapshots = {"out": str(tmp_path / "snapshots"), "ledger.snapshot-every": 2}
    compacted = simulate(config.with_values(snapshots))
    assert len(list(read_ledger(compacted / "ledger"))) < len(records)
    *_, recent = verify_ledger(compacted / "ledger", layout)
    np.testing.assert_array_equal(last.state, recent.state)
    again = config.with_values({"out": str(tmp_path / "again")})
    serve_until_killed(again, 4)
    assert ledger_of(simulate(again)) == ledger_of(whole)


def test_a_private_label_bias_beside_a_basis(informed: Settings) -> None:
    config = config_of(informed, method="partial", personal__rounds=1, rounds=1).with_values(
        {"personal.learning-rate": 0.1}
    )
    folder = simulate(config)
    run = FinishedRun.at(folder)
    private = run.personal_state(1)
    np.testing.assert_array_equal(run.model(1)[:SIZE], run.global_state()[:SIZE])
    np.testing.assert_array_equal(run.model(1)[SIZE:], private[SIZE:])
    assert private[SIZE:].any()
    assert [row.name for row in diff(folder, 0, 1)] == ["basis", "label bias", "all"]
    run_id = bytes.fromhex(run.result.run_id)
    assert personal_ledger(client_folder(run.config, run_id, 1)).exists()


def test_the_answers_of_an_exported_adapter_are_those_of_the_run(
    informed: Settings, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    import transformers

    config = config_of(informed | {"adapter.label-bias": False}, rounds=2)
    folder, out = simulate(config), tmp_path / "adapter"
    assert export(folder, None, out) == {}
    ids = torch.tensor([[7, 9, 11, 13, 15, 8]])
    base = transformers.AutoModelForCausalLM.from_pretrained(config.model.path)
    with torch.inference_mode():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = peft.PeftModel.from_pretrained(base, str(out)).eval()
        exported = model(input_ids=ids)[0]
    opened, ours = FinishedRun.at(folder), load_base_model(config.model.path)
    adapter = inject(ours, opened.config.adapter, 2)
    weights = opened.weight_map.weights(opened.model())
    with torch.inference_mode(), adapter.using(Perturbations.from_arrays(adapter.layout, weights)):
        adapted = ours.network(input_ids=ids)[0]
    torch.testing.assert_close(adapted, exported, rtol=1e-4, atol=1e-5)
    _, answers = quick_look(folder, "the film was good")
    assert not np.allclose(answers["base"], answers["global"])


def test_a_basis_that_is_missing_is_named(informed: Settings) -> None:
    folder = simulate(config_of(informed, rounds=1))
    reference = FinishedRun.at(folder).layout.basis
    assert reference is not None
    BlobStore().find(bytes.fromhex(reference.sha256)).unlink()  # type: ignore[union-attr]
    with pytest.raises(SamaraError, match=r"blob .* is not in"):
        _ = FinishedRun.at(folder).weight_map


def test_partial_without_a_label_bias_is_refused(informed: Settings) -> None:
    settings = informed | {"adapter.label-bias": False, "personal.rounds": 1}
    with pytest.raises(ConfigError, match="the coordinates in a basis belong to no tensor"):
        config_of(settings, method="partial", personal__part="*.1.*")


def test_tune_and_phones_refuse_a_basis(informed: Settings) -> None:
    config = config_of(informed, adapter__layers="top:1", adapter__label_bias=False)
    with pytest.raises(ConfigError, match=r"adapter\.basis: samara tune trains"):
        TuneSettings.of({"adapter.basis": informed["adapter.basis"]}, "test")
    with pytest.raises(ConfigError, match="a phone's program trains the adapter's elements"):
        prepare_model(config, "none")
