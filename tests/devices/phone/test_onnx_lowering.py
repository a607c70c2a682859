"""A readout's program for ONNX Runtime beside the eager model: representations, losses, steps."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Settings
from helpers import instruction_with
from phones import (
    SHAPES,
    Pair,
    assert_same_evaluation,
    assert_same_report,
    calls_of,
    pair_of,
)
from tokenizers import Tokenizer
from typer.testing import CliRunner

from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import ModelRuntime
from samara.devices.gateway.page_server.published_files import program_files
from samara.devices.phone.commands import app
from samara.devices.phone.export import KINDS, export_program, prepare_model
from samara.devices.phone.manifest import MANIFEST_KIND, Manifest, PhoneQuantization
from samara.devices.phone.onnx_lowering import lower_to_onnx
from samara.devices.phone.program_index import ProgramIndex, tokenizer_folder
from samara.devices.phone.quantization import (
    GROUP,
    round_to_4_bits,
    round_to_float16,
    round_tokens_to_8_bits,
)
from samara.devices.phone.reference_client.readout_program import OnnxReadoutProgram, load_program
from samara.server.live.invitations import phone_welcome
from samara.shared.errors import ConfigError, DeviceError, SamaraError
from samara.shared.model.loading import load_base_model
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.replay import STATE_BITS
from samara.shared.settings.config import RunConfig
from samara.shared.storage.files import check_requested

pytest.importorskip("onnxruntime", reason="pip install 'samara-fl[onnx]'")
pytest.importorskip("onnxscript", reason="pip install 'samara-fl[onnx]'")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs, each exported once."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def made(
    model_folder: Callable[[str], Path], data_file: Path, programs: Path
) -> Callable[..., tuple[Settings, Path]]:
    """Function that makes settings of a run with a readout, and its programs."""

    def make(
        family: str, quantization: PhoneQuantization, layers: str = "readout"
    ) -> tuple[Settings, Path]:
        embedded = family == "embedded"
        settings = {
            "adapter.layers": layers,
            "model.path": family if embedded else str(model_folder(family)),
            "model.max-length": SHAPES.sequence,
            "data.path": "messages" if embedded else str(data_file),
            "data.clients": 3,
            "data.partition": "iid",
            "task": "messages" if embedded else "sst2",
            "threads": 1,
            "out": str(programs / "run"),
        }
        kind = layers.replace(":", "-").replace("/", "-")
        file = programs / f"{family}-{quantization}-{kind}.onnx"
        if not file.exists():
            ready = prepare_model(RunConfig.of(settings, "test"), quantization)
            export_program(ready, SHAPES, quantization, "none", file, runtime="onnx")
        return settings, file

    return make


@pytest.fixture
def pair(made: Any, tmp_path: Path) -> Callable[..., Pair]:
    """A model runtime with a client's data, and a phone with the same model and examples."""

    def make(family: str, quantization: PhoneQuantization, layers: str = "readout") -> Pair:
        settings, file = made(family, quantization, layers)
        more = {"model.quantization": "int8"} if quantization == "int8" else {}
        runtime, data, phone = pair_of(settings | more, file, tmp_path)
        if quantization != "none":
            runtime.forward._readout.load_damping()  # an export measures it before it rounds
        round_as(quantization, runtime)
        return runtime, data, phone

    return make


def round_as(quantization: PhoneQuantization, runtime: ModelRuntime) -> None:
    """Round the weights of an eager model like an export with this quantization."""
    if quantization == "int4":
        round_to_4_bits(runtime.base)
    elif quantization == "float16":
        round_to_float16(runtime.base)
    if quantization in ("int8", "int4"):
        round_tokens_to_8_bits(runtime.base)


def some_state(size: int) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(1).normal(0, 0.3, size)
    return (values * 2.0**STATE_BITS).astype(np.int64)


@pytest.mark.parametrize(
    ("family", "quantization", "layers"),
    [
        ("embedded", "int4", "readout"),
        ("causal", "none", "readout:2/3"),
        pytest.param("embedded", "none", "readout", marks=pytest.mark.exhaustive),
        pytest.param("embedded", "float16", "readout", marks=pytest.mark.exhaustive),
        pytest.param("encoder", "float16", "readout", marks=pytest.mark.exhaustive),
        pytest.param("encoder", "none", "readout", marks=pytest.mark.exhaustive),
        pytest.param("encoder", "int8", "readout", marks=pytest.mark.exhaustive),
        pytest.param("encoder", "none", "readout:2/3", marks=pytest.mark.exhaustive),
        pytest.param("causal", "none", "readout", marks=pytest.mark.exhaustive),
        pytest.param("causal", "int8", "readout", marks=pytest.mark.exhaustive),
        pytest.param("causal", "int8", "readout:2/3", marks=pytest.mark.exhaustive),
    ],
)
def test_representations_losses_and_200_steps_are_those_of_eager(
    pair: Any, family: str, quantization: str, layers: str
) -> None:
    runtime, data, phone = pair(family, quantization, layers)
    assert phone.layout.hash == runtime.layout.hash
    prompts = data.tokenized(Split.TRAIN).prompts
    runtime.prepare(prompts)
    scores, features = calls_of(phone).numbers(Split.TRAIN, np.arange(len(prompts)))
    np.testing.assert_allclose(scores, runtime.forward.base_scores(prompts), atol=1e-4)
    np.testing.assert_allclose(features, runtime.features(prompts), atol=1e-4)
    state = some_state(runtime.layout.size)
    for changes in (
        {"steps": 200, "queries": 4, "batch": 8, "curvature_every": 2},
        {"batch": 5, "differences": "forward"},
    ):
        instruction = instruction_with(layout_hash=runtime.layout.hash, **changes)
        expected = take_local_steps(runtime, data, instruction, state)
        assert_same_report(phone.take_steps(instruction, state), expected)
    assert_same_evaluation(phone, runtime, data, state)


@pytest.mark.parametrize(
    ("quantization", "steps"),
    [
        ("none", 3),
        pytest.param("none", 200, marks=pytest.mark.exhaustive),
        pytest.param("float16", 200, marks=pytest.mark.exhaustive),
        pytest.param("int8", 200, marks=pytest.mark.exhaustive),
        pytest.param("int4", 200, marks=pytest.mark.exhaustive),
    ],
)
def test_steps_of_adapters_inside_the_model_are_those_of_eager(
    made: Any, tmp_path: Path, quantization: PhoneQuantization, steps: int
) -> None:
    settings, file = made("embedded", quantization, "top:1")
    more = {"model.quantization": "int8"} if quantization == "int8" else {}
    runtime, data, phone = pair_of(settings | more, file, tmp_path)
    round_as(quantization, runtime)
    assert '"version": 5' in file.with_suffix(".json").read_text()
    state = some_state(runtime.layout.size) // 8
    tolerance = 1e-4 if quantization == "int4" else 1e-5
    small = 0.001  # a rate at which what the engines round apart does not grow
    for changes in (
        {"steps": steps, "queries": 3, "batch": 5, "curvature_every": 2, "learning_rate": small},
        {"batch": 3, "differences": "forward"},
    ):
        instruction = instruction_with(layout_hash=runtime.layout.hash, **changes)
        expected = take_local_steps(runtime, data, instruction, state)
        assert_same_report(phone.take_steps(instruction, state), expected, tolerance)
    assert_same_evaluation(phone, runtime, data, state)


def test_a_graph_has_the_embeddings_of_all_tokens_and_the_heads_rows_of_words(made: Any) -> None:
    import onnx

    _, file = made("embedded", "none", "top:1")
    vocabulary = load_base_model("embedded").vocabulary
    tensors = onnx.load(file, load_external_data=False).graph.initializer
    assert len([tensor for tensor in tensors if vocabulary in tensor.dims]) == 1


def test_rounding_again_changes_no_weight() -> None:
    base = load_base_model("embedded")
    before = [weight.clone() for weight in base.blocks.parameters()]
    round_to_4_bits(base)
    once = [weight.clone() for weight in base.blocks.parameters()]
    round_to_4_bits(base)
    assert any(not torch.equal(*two) for two in zip(before, once, strict=True))
    assert all(torch.equal(*two) for two in zip(once, base.blocks.parameters(), strict=True))
    groups = next(w for w in base.blocks.parameters() if w.ndim == 2).view(-1, GROUP)
    assert max(len(group.unique()) for group in groups) <= 16


@pytest.mark.parametrize(("depth", "is_rounded"), [("", False), ("2/3", True)])
def test_a_tied_table_is_rounded_where_the_head_is_left_out(
    depth: str, is_rounded: bool, model_folder: Callable[[str], Path]
) -> None:
    base = load_base_model(str(model_folder("causal")), depth=depth)
    table = base.network.get_input_embeddings().weight
    base.network.get_output_embeddings().weight = table
    before = table.detach().clone()
    round_tokens_to_8_bits(base)
    assert torch.equal(before, table) != is_rounded


def test_a_manifest_says_what_runs_the_program(made: Any) -> None:
    _, file = made("embedded", "int4")
    manifest = load_program(file).manifest
    assert (manifest.runtime, manifest.delegate) == ("onnx", "none")
    text = file.with_suffix(".json").read_text()
    assert '"version": 4' in text
    check_requested(file, KINDS["onnx"])  # an export replaces its own files
    check_requested(file.with_suffix(".json"), MANIFEST_KIND)
    other = file.with_name("other.onnx")
    other.write_bytes(file.read_bytes())
    other.with_suffix(".json").write_text(
        text.replace('"delegate": "none"', '"delegate": "xnnpack"')
    )
    with pytest.raises(DeviceError, match="the manifest's shapes contradict each other"):
        load_program(other)


def test_weights_lie_in_listed_files_and_nothing_tells_of_the_exporting_machine(
    made: Any, tmp_path: Path
) -> None:
    _, file = made("embedded", "int4")
    manifest = Manifest.read(file)
    assert sum(one.bytes for one in manifest.weights) > 5 * file.stat().st_size
    content = file.read_bytes()
    assert str(Path(torch.__file__).parent).encode() not in content
    assert b"stack_trace" not in content
    for path in (file, file.with_suffix(".json")):
        shutil.copy(path, tmp_path)
    moved = tmp_path / file.name
    with pytest.raises(DeviceError, match=r"weights-000\.bin: cannot be read"):
        load_program(moved)
    (name,) = (one.path for one in manifest.weights)
    (tmp_path / name).write_bytes(bytes(10))
    with pytest.raises(DeviceError, match=r"not a file of .*copy all its files again"):
        load_program(moved)


@pytest.mark.parametrize("path", ["../weights.bin", "/weights.bin", "..", ""])
def test_a_manifest_names_weights_in_its_own_folder_alone(
    made: Any, tmp_path: Path, path: str
) -> None:
    _, file = made("embedded", "int4")
    moved = tmp_path / "model.onnx"
    shutil.copy(file, moved)
    content = json.loads(file.with_suffix(".json").read_text())
    content["weights"][0]["path"] = path
    moved.with_suffix(".json").write_text(json.dumps(content))
    with pytest.raises(DeviceError, match="the manifest's shapes contradict each other"):
        Manifest.read(moved)


def test_an_index_has_all_that_a_browser_fetches_and_how_it_tokenizes(made: Any) -> None:
    _, file = made("embedded", "int4")
    index = ProgramIndex.read(file)
    published = program_files(file)
    manifest = Manifest.read(file)
    assert [one.sha256 for one in index.weights] == [one.sha256 for one in manifest.weights]
    expected = {index.manifest.sha256, manifest.program_sha256, index.weights[0].sha256}
    expected |= {one.sha256 for one in index.tokenizer.values()}
    assert published.keys() == {"/program/index.json"} | {f"/program/{one}" for one in expected}
    assert index.task["words"] == manifest.words
    tokenizer = Tokenizer.from_file(str(tokenizer_folder(file) / "tokenizer.json"))
    how = index.tokenization
    assert len(index.examples) >= 3
    for example in index.examples:
        text = example["row"]["text"] + how.after
        ids = how.before + tokenizer.encode(text, add_special_tokens=how.special).ids
        assert (ids, len(ids) - 1) == (example["ids"], example["position"])
    assert how.limit + len(how.before) < manifest.sequence


def test_a_phone_is_not_invited_to_a_program_in_many_files(made: Any, tmp_path: Path) -> None:
    _, file = made("embedded", "int4")
    with pytest.raises(SamaraError, match=r"is for browsers.*browser with --page"):
        phone_welcome(tmp_path, "gateway.example:9100", file, file)


def test_a_damaged_program_is_named(made: Any, tmp_path: Path) -> None:
    _, file = made("embedded", "int4")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    with pytest.raises(
        DeviceError, match=r"broken\.onnx: this ONNX Runtime cannot load the program"
    ):
        OnnxReadoutProgram(broken, Manifest.read(file))
    program = load_program(file)
    ids, positions = np.zeros((1, 3), np.int64), np.zeros(1, np.int64)
    with pytest.raises(DeviceError, match="ONNX Runtime cannot run the exported program"):
        program.run("forward", ids, positions)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--quantization", "8da4w"], "8da4w needs --runtime executorch"),
        (["--form", "algorithm-1"], "only functional programs"),
    ],
)
def test_what_onnx_runtime_has_not_is_refused(
    tmp_path: Path, options: list[str], problem: str
) -> None:
    out = tmp_path / "model.onnx"
    given = ["export", "--runtime", "onnx", "--batch", "2", "--seq", "8", "--out", str(out)]
    result = CliRunner().invoke(app, [*given, *options])
    assert isinstance(result.exception, ConfigError)
    assert problem in str(result.exception)
    assert not out.exists()


def test_a_page_reads_a_chat_as_the_models_clients_do(
    model_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(model_folder("causal", 1), tmp_path / "instruct")
    template = "<s>{% for m in messages %}{{ m['content'] }} . {% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    given = ["export", "--runtime", "onnx", "--batch", "2", "--seq", "32", "--task", "sst2"]
    given += ["--model", str(folder), "--set", "form=chat", "--out", str(tmp_path / "model.onnx")]
    assert CliRunner().invoke(app, given).exception is None
    file = tmp_path / "model.onnx"
    index, tokenizer = ProgramIndex.read(file), load_base_model(str(folder)).tokenizer
    before, after = index.tokenization.before, index.tokenization.after
    assert (before, after) == ("<s>", " . It was")
    for example in index.examples:
        chat = [{"role": "user", "content": example["row"]["text"].strip()}]
        text = tokenizer.apply_chat_template(chat, tokenize=False).rstrip() + " It was"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert (ids, len(ids) - 1) == (example["ids"], example["position"])


def test_weights_beyond_one_file_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from samara.devices.phone import onnx_lowering
    from samara.devices.phone.lowering import Method

    monkeypatch.setattr(onnx_lowering, "MAX_GRAPH_BYTES", 10)
    with pytest.raises(ConfigError, match="use --quantization int8, or --runtime executorch"):
        lower_to_onnx(Method(torch.nn.Linear(2, 2), (torch.zeros(1, 2),)), "none", [])


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from samara.devices.phone import extra

    found = extra.importlib.util.find_spec
    monkeypatch.setattr(
        extra.importlib.util, "find_spec", lambda one: None if one == name else found(one)
    )
    with pytest.raises(DeviceError, match=rf"\({name}: not installed\).*samara-fl\[onnx\]"):
        extra.require_onnx()
