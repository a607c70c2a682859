"""Spaces in real models: the scores around θ, and the return to θ afterwards."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rigs import BACKEND, BUILD, BY_PEFT, LABELS, SEEDS, TEXTS, Rig
from streams import Shape
from tiny_models import ARCHITECTURES, save_tokenizer

from samara.client.estimators.mezo import mezo_estimator
from samara.client.estimators.prge import LossRequest, run_estimator
from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import GROUPINGS, Schedule, perturbations_per_pass
from samara.client.forward.resident import ResidentForward
from samara.client.spaces import space as spaces
from samara.client.spaces.full import FullSpace
from samara.client.spaces.head import HeadSpace
from samara.client.spaces.low_rank import LoRASpace
from samara.client.spaces.peft_adapter import VeRASpace
from samara.client.spaces.prefix import PrefixSpace, draw_prefix_tokens
from samara.client.spaces.scaling import Scaling
from samara.client.spaces.space import Space
from samara.client.tuning.descent import SGD, Adam, Descent, Momentum, UpdateRule, UpdateStep
from samara.client.tuning.model_export import export_model
from samara.client.tuning.trajectory import TrajectoryWriter, make_header, read_trajectory
from samara.shared.errors import ModelError
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.lora_fa import LoRAFALinear, empty_adapter
from samara.shared.model.perturbations import Perturbations, PerturbedAdapters
from samara.shared.model.scorers import Prompt
from samara.shared.protocol.directions import WHOLE_BLOCKS, directions
from samara.shared.settings.sections import AdapterSettings
from samara.shared.tasks.label_scores import cross_entropy

ModelFolder = Callable[..., Path]
EPSILON = 0.25


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks so small that a tiny model has several, and some tensors lie in two chunks."""
    monkeypatch.setattr(spaces, "CPU_CHUNK", WHOLE_BLOCKS)


@pytest.mark.parametrize("kind", [*BUILD, *BY_PEFT])
def test_scores_around_are_those_of_a_model_that_was_moved_there(
    kind: str, model_folder: ModelFolder
) -> None:
    folder = model_folder("causal")
    rig = Rig(folder, kind)
    rig.wander()
    theta, center = rig.theta(), rig.space.evaluate(rig.run)
    found = rig.space.evaluate(rig.run, SEEDS, EPSILON)
    assert center.shape == (1, len(TEXTS), 2)
    assert found.shape == (4, len(TEXTS), 2)
    if kind == "full, in place":
        np.testing.assert_allclose(rig.theta(), theta, rtol=0, atol=1e-6)
    else:
        np.testing.assert_array_equal(rig.theta(), theta)
        np.testing.assert_array_equal(rig.space.evaluate(rig.run), center)
    z = directions(SEEDS, rig.space.size, "gaussian").astype(np.float32) / np.float32(2048)
    for point in range(4):
        other = Rig(folder, kind)
        moved = theta + np.float32(EPSILON if point < 2 else -EPSILON) * z[point % 2]
        other.space.assign(0, torch.from_numpy(moved))
        np.testing.assert_allclose(other.space.evaluate(other.run)[0], found[point], atol=2e-5)
        assert np.abs(found[point] - center[0]).max() > 1e-3


@pytest.mark.parametrize("kind", BUILD)
def test_theta_comes_back_when_scoring_fails(kind: str, model_folder: ModelFolder) -> None:
    rig = Rig(model_folder("causal"), kind)
    theta, center = rig.theta(), rig.space.evaluate(rig.run)

    def fail(perturbations: PerturbedAdapters) -> NDArray[np.float32]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rig.space.evaluate(fail, SEEDS, EPSILON)
    np.testing.assert_allclose(rig.theta(), theta, rtol=0, atol=1e-6)
    np.testing.assert_allclose(rig.space.evaluate(rig.run), center, atol=1e-4)


@pytest.mark.parametrize("kind", [kind for kind in BUILD if not kind.startswith("prefix")])
@pytest.mark.parametrize("family", ["masked", "encoder"])
def test_other_families_move_too(family: str, kind: str, model_folder: ModelFolder) -> None:
    if (family, kind) == ("encoder", "head"):
        with pytest.raises(ModelError, match="the model has no head with a vocabulary"):
            Rig(model_folder(family), kind)
        return
    rig = Rig(model_folder(family), kind)
    found = rig.space.evaluate(rig.run, SEEDS, 0.01)
    assert np.isfinite(found).all()
    assert np.abs(found[0] - found[2]).max() > 1e-4 or kind == "lora-fa"


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*((k, "float32") for k in BUILD), ("full, in place", "bfloat16"), ("full", "bfloat16")],
)
@pytest.mark.parametrize("update", [SGD(), Momentum(0.5), Adam(0.5, 0.75)], ids=repr)
def test_base_and_trajectory_are_the_trained_model(
    kind: str,
    dtype: str,
    update: UpdateRule,
    model_folder: ModelFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of directions follows a schedule.

    Each direction has its own batch; losses are real.
    """
    monkeypatch.setattr("os.fsync", lambda _: None)
    folder, path = model_folder("causal"), tmp_path / "trajectory"
    rig = Rig(folder, kind, dtype=dtype)
    header = make_header(
        rig.space,
        update,
        model_id=rig.base.model_id,
        root=5,
        epsilon=0.01,
        settings_hash=bytes(32),
    )
    descent = Descent(rig.space, update)
    begin = rig.theta()
    with closing(TrajectoryWriter(path, header, rig.space)) as writer:
        for step in range(4):
            queries = 1 + step % 2
            batches = np.arange(2 * queries).reshape(queries, 2)
            estimator = mezo_estimator(writer.seeds(queries), batches, 0.01)
            found = run_estimator(estimator, rig.losses_of)
            descent.step(writer.append(found.gradients, 0.01))
    assert np.abs(rig.theta() - begin).max() > 1e-3
    rebuilt = Rig(folder, kind, dtype=dtype)
    monkeypatch.setattr(spaces, "CPU_CHUNK", 2 * WHOLE_BLOCKS)
    read_trajectory(path).rebuild(rebuilt.space, update, rebuilt.base.model_id)
    np.testing.assert_array_equal(rebuilt.theta(), rig.theta())
    assert rebuilt.space.digest() == rig.space.digest()
    if kind.startswith("full"):
        ours = dict(rebuilt.base.network.named_parameters())
        for name, parameter in rig.base.network.named_parameters():
            assert torch.equal(parameter, ours[name])


@pytest.mark.parametrize("kind", [*BUILD, *BY_PEFT])
def test_steps_go_downhill(kind: str, model_folder: ModelFolder) -> None:
    rig = Rig(model_folder("causal"), kind)
    descent = Descent(rig.space, Adam(), hold_moments=True)
    before = cross_entropy(rig.space.evaluate(rig.run), LABELS)[0]
    header = make_header(
        rig.space, SGD(), model_id=bytes(32), root=0, epsilon=0.01, settings_hash=bytes(32)
    )
    for step in range(8):
        seeds = header.seeds(step, 4)
        estimator = mezo_estimator(seeds, np.tile(np.arange(4), (4, 1)), 0.01)
        found = run_estimator(estimator, rig.losses_of)
        rate = 0.2 if kind == "vera" else 0.02  # its vectors multiply small random numbers
        descent.step(UpdateStep(seeds, found.gradients, rate, 0.01))
    assert cross_entropy(rig.space.evaluate(rig.run), LABELS)[0] < before - 0.05


def test_full_is_every_parameter_with_tied_ones_once(tmp_path: Path) -> None:
    _, build, _ = ARCHITECTURES["GPT-2"]
    build(save_tokenizer(tmp_path, "causal")).save_pretrained(tmp_path)
    rig = Rig(tmp_path, "full")
    network = rig.base.network
    assert network.lm_head.weight is network.transformer.wte.weight
    assert rig.space.size == sum(parameter.numel() for parameter in network.parameters())
    names = [tensor.name for tensor in rig.space.tensors]
    assert names == [name for name, _ in network.named_parameters()]
    assert "lm_head.weight" not in names
    for name, tensor in rig.space.named_tensors():
        assert torch.equal(tensor, network.get_parameter(name))


def test_in_place_is_the_copy_to_the_bit_where_no_move_rounds(model_folder: ModelFolder) -> None:
    """Weights, moves and updates are multiples of 2⁻¹⁵ of at most 19 bits."""
    found = []
    for kind in ("full", "full, in place"):
        rig = Rig(model_folder("causal"), kind)
        rig.space.assign(0, torch.from_numpy(np.round(rig.theta() * 2**12) / np.float32(2**12)))
        descent, every = Descent(rig.space, SGD()), np.arange(len(TEXTS))
        for seed in range(3):
            seeds = SEEDS + np.uint64(seed)
            plus, minus = np.split(rig.losses_of(LossRequest(seeds, EPSILON, every)), 2)
            gradients = (np.round(2 * (plus - minus) / EPSILON) / 4 + 0.25).astype(np.float32)
            descent.step(UpdateStep(seeds, gradients, 0.5, EPSILON))
            found.append((plus, minus, rig.theta()))
    for copied, in_place in zip(found[:3], found[3:], strict=True):
        for one, other in zip(copied, in_place, strict=True):
            np.testing.assert_array_equal(one, other)


def test_lora_begins_as_lora_fa_and_trains_a(model_folder: ModelFolder) -> None:
    lora, lora_fa = (Rig(model_folder("causal"), kind) for kind in ("lora", "lora-fa"))
    np.testing.assert_array_equal(
        lora.space.evaluate(lora.run), lora_fa.space.evaluate(lora_fa.run)
    )
    for name, tensor in lora.space.named_tensors():
        if name.endswith(".A"):
            layer = lora_fa.base.body.get_submodule(name.removesuffix(".A"))
            assert isinstance(layer, LoRAFALinear)
            assert torch.equal(tensor, layer.a)
        else:
            assert not tensor.any()
    rank_inputs = sum(t.size for t in lora.space.tensors if t.name.endswith(".A"))
    assert lora.space.size == lora_fa.space.size + rank_inputs


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", ["lora", "vera", "prefix", "prefix of a network"])
@pytest.mark.parametrize("shape", ["Llama", "GPT-NeoX", "BERT"])
def test_points_share_passes_with_the_scores_of_a_pass_for_each(
    shape: str, kind: str, scaled: bool, shape_folder: Shape
) -> None:
    """Every grouping gives the scores of θ moved to each point, in the expected number of passes.

    A row is repeated for each perturbation only from the first adapted block on.
    """
    rig = Rig(shape_folder(shape, False), kind)
    rig.wander()
    space, rows = rig.space, list[int]()
    if scaled:
        factors = np.linspace(0.5, 2, len(space.groups.names), dtype=np.float32)
        space.scaling = Scaling(factors)

    def note_rows(_: object, __: object, called: dict[str, Any]) -> None:
        if called.get("attention_mask") is not None:  # the head calls the body with ids alone
            rows.append(len(called["input_ids"]))

    expected = []
    theta = space.values(0, space.size).clone()
    for sign in (1, -1):
        for seed in SEEDS:
            z = space.perturbation(int(seed), 0, space.size, space.scaling)
            space.assign(0, theta + sign * EPSILON * z)
            expected.append(space.evaluate(rig.run)[0])
    space.assign(0, theta)
    rig.base.body.register_forward_pre_hook(note_rows, with_kwargs=True)
    for grouping in GROUPINGS:
        for micro_batch in (0, 3):
            rows.clear()
            schedule = Schedule(grouping, micro_batch)
            found = space.evaluate(
                lambda points, schedule=schedule: rig.forward.scores(points, rig.prompts, schedule),
                SEEDS,
                EPSILON,
            )
            np.testing.assert_allclose(found, np.stack(expected), rtol=0, atol=2e-5)
            groups = 2 * len(SEEDS) // perturbations_per_pass(grouping, len(SEEDS))
            assert sorted(rows) == sorted(groups * ([3, 1] if micro_batch else [4]))


@pytest.mark.parametrize(
    "build",
    [
        lambda base: LoRASpace(base, AdapterSettings(layers="top:1"), 2, BACKEND),
        lambda base: VeRASpace(base, AdapterSettings(layers="top:1"), BACKEND),
        lambda base: PrefixSpace(base, 3, 7, BACKEND),
    ],
    ids=["lora", "vera", "prefix"],
)
def test_points_share_passes_of_a_single_block(
    build: Callable[[BaseModel], Space], model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one block, the attention of the last block is also the attention of the first block."""
    monkeypatch.setitem(BUILD, "single", build)
    rig = Rig(model_folder("causal", 1), "single")
    rig.wander()
    together = rig.space.evaluate(rig.run, SEEDS, EPSILON)
    alone = [
        rig.space.evaluate(rig.run, SEEDS[[i]], EPSILON, (s,)) for s in (1, -1) for i in (0, 1)
    ]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=0, atol=2e-5)
    assert np.abs(together[0] - together[1]).max() > 1e-3


def behind(tokens: list[int], prompt: Prompt) -> Prompt:
    """Return the prompt with tokens added before each of its sequences."""
    return Prompt(
        tuple((*tokens, *sequence) for sequence in prompt.sequences),
        tuple(tuple(len(tokens) + at for at in places) for places in prompt.supervised),
    )


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "GPT-NeoX", "OPT"])
def test_a_prefix_begins_as_the_tokens_that_it_was_made_of(
    name: str, model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder = model_folder("causal") if name == "Llama" else tmp_path
    if name != "Llama":
        torch.manual_seed(0)
        ARCHITECTURES[name][1](save_tokenizer(folder, "causal")).save_pretrained(folder)
    rig = Rig(folder, "prefix")
    tokens = draw_prefix_tokens(rig.base, 3, 7)
    assert not set(tokens) & set(rig.base.tokenizer.all_special_ids)
    found = rig.space.evaluate(rig.run)
    with_tokens = [behind(tokens, prompt) for prompt in rig.prompts]
    adapter, nothing = empty_adapter()
    plain = ResidentForward(adapter, rig.scorer, PerturbedBody(rig.base, 0))
    expected = plain.scores(nothing, with_tokens)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    without = plain.scores(nothing, rig.prompts)
    assert np.abs(found - without).max() > 1e-4


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["BERT", "RoBERTa"])
def test_a_prefix_of_a_masked_lm_is_tokens_that_see_one_another_alone(
    name: str, attention: str, model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder = model_folder("masked") if name == "BERT" else tmp_path
    if name != "BERT":
        torch.manual_seed(0)
        ARCHITECTURES[name][1](save_tokenizer(folder, "masked")).save_pretrained(folder)
    base = load_base_model(str(folder))
    base.network.set_attn_implementation(attention)
    space, body = PrefixSpace(base, 3, 7, BACKEND), PerturbedBody(base, 0)
    short, long = (5, 9, 11), (5, 9, 11, 12, 13, 14)
    prefix = Perturbations(space.layout, space.values(0, space.size))
    with torch.inference_mode(), space.adapter.using(prefix):
        padded = body([short, long])
        read = body([short, long], supervised=[(1,), (2,)])
    for row, own in enumerate((short, long)):
        ids = torch.tensor([[*space.tokens, *own]])
        sees = torch.ones(1, 1, ids.shape[1], ids.shape[1], dtype=torch.bool)
        sees[..., :3, 3:] = False
        mask = sees if attention == "sdpa" else torch.zeros(sees.shape).masked_fill(~sees, -1e30)
        with torch.inference_mode():
            whole = base.body(input_ids=ids, attention_mask=mask).last_hidden_state[0, 3:]
        torch.testing.assert_close(padded[row, : len(own)], whole, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(read[row, row + 1], whole[row + 1], rtol=1e-4, atol=1e-5)


def test_a_random_prefix_begins_as_random_numbers(model_folder: ModelFolder) -> None:
    base = load_base_model(str(model_folder("causal")))
    spaces_of = [PrefixSpace(base, 3, seed, BACKEND, random_start=True) for seed in (7, 7, 8)]
    first, again, other = (space.values(0, space.size).numpy() for space in spaces_of)
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.9
    spread = base.network.config.initializer_range
    assert first.std() == pytest.approx(spread, rel=0.2)
    assert spaces_of[0].portable
    assert not PrefixSpace(base, 3, 7, BACKEND).portable


def test_a_network_makes_a_prefix_out_of_embeddings(model_folder: ModelFolder) -> None:
    base = load_base_model(str(model_folder("causal")))
    space = PrefixSpace(base, 3, 7, BACKEND, width=8)
    rows = {name: tensor.numpy() for name, tensor in space.named_tensors()}
    hidden = rows["embeddings"] @ rows["hidden.weight"].T + rows["hidden.bias"]
    made = np.tanh(hidden) @ rows["output.weight"].T + rows["output.bias"]
    parts = space.keys_and_values(Perturbations(space.layout, space.values(0, space.size)))
    assert len(parts) == 2 * len(base.blocks)
    by_token = [part[0].transpose(0, 1).reshape(3, -1) for part in parts]
    np.testing.assert_allclose(torch.cat(by_token, dim=1).numpy(), made, rtol=1e-5, atol=1e-6)
    assert space.portable
    assert rows["embeddings"].std() == pytest.approx(1, rel=0.3)
    assert not rows["output.bias"].any()


def test_a_trained_head_is_no_longer_tied(tmp_path: Path) -> None:
    """The word embeddings stay unchanged, in the run and in the exported model."""
    from transformers import AutoModelForCausalLM

    source = tmp_path / "tied"
    source.mkdir()
    ARCHITECTURES["GPT-2"][1](save_tokenizer(source, "causal")).save_pretrained(source)
    rig = Rig(source, "head")
    network = rig.base.network
    words = network.transformer.wte.weight.clone()
    assert rig.space.size == words.numel()
    rig.wander()
    ids = torch.tensor([[7, 9, 11]])
    with torch.inference_mode(), rig.space._unperturbed():
        expected = network(input_ids=ids).logits
    assert isinstance(rig.space, HeadSpace)
    rig.space.replace_head()
    export_model(rig.base, tmp_path / "out")
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(loaded.transformer.wte.weight, words)
    with torch.inference_mode():
        torch.testing.assert_close(loaded.eval()(input_ids=ids).logits, expected)


def test_a_quantized_models_head_is_trained_in_the_compute_type(model_folder: ModelFolder) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra samara-fl[quantized] is not installed")
    base = load_base_model(str(model_folder("causal")), quantization="int8")
    ids = torch.tensor([[7, 9, 11]])
    with torch.inference_mode():
        before = base.network(input_ids=ids).logits
    space = HeadSpace(base, BACKEND)
    ((_, head),) = space.named_tensors()
    assert space.size == head.numel() == 32 * base.vocabulary
    with torch.inference_mode():
        torch.testing.assert_close(base.network(input_ids=ids).logits, before)


def test_what_a_prefix_does_not_fit(model_folder: ModelFolder) -> None:
    base = load_base_model(str(model_folder("encoder")))
    with pytest.raises(ModelError, match="needs a language model and this is a sentence encoder"):
        PrefixSpace(base, 3, 7, BACKEND)
    base = load_base_model(str(model_folder("causal")))
    with pytest.raises(ModelError, match="prefix of 64 tokens does not fit a context of 64"):
        PrefixSpace(base, 64, 7, BACKEND)
    space = PrefixSpace(base, 40, 7, BACKEND)
    body = PerturbedBody(base, 0)

    def run(perturbations: PerturbedAdapters) -> NDArray[np.float32]:
        with space.adapter.using(perturbations):
            return np.asarray(body([tuple(range(25))]))

    with pytest.raises(ModelError, match=r"25 tokens does not fit.*lower model\.max-length"):
        space.evaluate(run)

    def generate(perturbations: PerturbedAdapters) -> NDArray[np.float32]:
        with space.adapter.using(perturbations):
            return np.asarray(base.network.generate(torch.tensor([[9, 8]]), max_new_tokens=2))

    with pytest.raises(ModelError, match=r"cache other than the prefix; run whole sequences"):
        space.evaluate(generate)


def test_quantized_weights_are_not_trained(model_folder: ModelFolder) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra samara-fl[quantized] is not installed")
    folder = model_folder("causal")
    base = load_base_model(str(folder), quantization="int8")
    with pytest.raises(ModelError, match="quantized weights cannot be trained"):
        FullSpace(base, BACKEND)
    rig = Rig(folder, "lora", quantization="int8")
    assert np.isfinite(rig.space.evaluate(rig.run, SEEDS, EPSILON)).all()


def test_a_copy_keeps_what_half_types_would_lose(model_folder: ModelFolder) -> None:
    kept, lost = (
        Rig(model_folder("causal"), kind, dtype="bfloat16") for kind in ("full", "full, in place")
    )
    begin = kept.theta()
    for rig in (kept, lost):
        for _ in range(64):
            for first, count in rig.space.chunks():
                rig.space.add(first, torch.full((count,), 2.0**-16))
    moved = np.abs(begin) > 2.0**-5
    np.testing.assert_array_equal(lost.theta()[moved], begin[moved])
    np.testing.assert_allclose(kept.theta() - begin, 64 * 2.0**-16, rtol=1e-2)
