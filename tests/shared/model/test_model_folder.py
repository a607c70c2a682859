"""The files of a model's folder: files that are read, hashed and downloaded, and refusals."""

import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from crossed import crossed
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file

from samara.client.streaming.loading import load_model
from samara.shared.errors import ModelError
from samara.shared.model.loading import load_base_model, load_structure
from samara.shared.model.model_folder import find_model_folder, model_id, model_id_of
from samara.shared.model.scorers import scorer_for
from samara.shared.model.tokenizer import load_tokenizer
from samara.shared.settings.sections import ModelSettings
from samara.shared.tasks.kinds import ClassificationTask

pytest.importorskip("bitsandbytes", reason="needs the extra samara-fl[quantized]")

ModelFolder = Callable[[str], Path]
WAYS: dict[str, dict[str, str]] = {
    "memory": {},
    "int8": {"quantization": "int8"},
    "nf4": {"quantization": "nf4"},
    "streamed": {"stream": "disk"},
    "automatic": {"stream": "auto"},
}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
PAGE = b"\n<!DOCTYPE html><html>" + b"x" * 2000


def load(folder: Path, way: str) -> Any:
    given = {"path": str(folder), "stream": "off"} | WAYS[way]
    return load_model(ModelSettings.model_validate(given, by_alias=False, by_name=True))


@pytest.fixture
def folder(model_folder: ModelFolder, tmp_path: Path) -> Path:
    shutil.copytree(model_folder("causal"), tmp_path / "model")
    return tmp_path / "model"


def write_json(file: Path, **changes: Any) -> None:
    settings = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(settings | changes))


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "half": (
        lambda whole: whole[: len(whole) // 2],
        r"is truncated: .* and its tensors need .* again",
    ),
    "longer": (lambda whole: whole + b"x", r"it is damaged .*download the model again"),
    "pointer": (lambda whole: POINTER, "a Git LFS pointer .*git lfs pull"),
    "page": (lambda whole: PAGE, "a web page.*download the model again"),
    "empty": (lambda whole: b"", "it is empty; download the model again"),
    "other": (lambda whole: b"nothing", "it is damaged .*download the model again"),
}


@pytest.mark.parametrize(("damage", "way"), crossed(DAMAGES, WAYS))
def test_damaged_weights_have_one_message(damage: str, way: str, folder: Path) -> None:
    file = folder / "model.safetensors"
    make, message = DAMAGES[damage]
    file.write_bytes(make(file.read_bytes()))
    with pytest.raises(ModelError, match=rf"model\.safetensors: cannot be loaded: .*{message}"):
        load(folder, way)


@pytest.mark.parametrize(
    "content", [b"\x80\x04broken", POINTER, PAGE, b"", "half", "list"], ids=str
)
def test_damaged_pickles(content: Any, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    file = folder / "pytorch_model.bin"
    torch.save([1] if content == "list" else tensors, file)
    if content == "half":
        content = file.read_bytes()[: file.stat().st_size // 2]
    if content != "list":
        file.write_bytes(content)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: cannot be loaded: .*again"):
        load_base_model(str(folder))


def test_a_pickle_is_loaded_and_its_parts_too(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    found = load_base_model(str(folder)).network.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [POINTER, PAGE, b"", b'{"a": '])
def test_damaged_settings_and_tokenizers(content: bytes, name: str, folder: Path) -> None:
    (folder / name).write_bytes(content)
    for way in ("memory", "streamed"):
        with pytest.raises(ModelError, match=rf"{name}: cannot be loaded: .*again"):
            load(folder, way)
    if name != "config.json":
        with pytest.raises(ModelError, match=rf"{name}: cannot be loaded: .*again"):
            load_tokenizer(folder)


QUANTIZED = [
    {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    {"quantization_config": {"quant_method": "awq"}},
    {"quantization_config": {"bits": 4}},
    {"compression_config": {"quant_method": "compressed-tensors"}},
    {"text_config": {"quantization_config": {"quant_method": "fp8"}}},
]


@pytest.mark.parametrize("settings", QUANTIZED)
def test_what_is_quantized_already_is_refused_by_name(settings: Any, folder: Path) -> None:
    write_json(folder / "config.json", **settings)
    method = next(iter(settings.values()))
    method = method.get("quant_method") or method.get("quantization_config", {}).get("quant_method")
    reason = rf"\({method or 'quantization_config'}\)"
    message = rf"already quantized {reason}; set model\.path to the original model"
    for way in WAYS:
        with pytest.raises(ModelError, match=message):
            load(folder, way)
    with pytest.raises(ModelError, match=message):
        load_structure(str(folder))


@pytest.mark.parametrize("name", ["quantize_config.json", "quant_config.json"])
def test_settings_of_older_quantizers_are_found(name: str, folder: Path) -> None:
    write_json(folder / name, bits=4)
    with pytest.raises(ModelError, match=rf"already quantized \({name}\)"):
        find_model_folder(str(folder))


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        (
            "config.json",
            {"auto_map": {"AutoConfig": "own.Config"}, "model_type": "own"}
            | {"architectures": ["OwnForCausalLM"]},
        ),
        (
            "config.json",
            {
                "auto_map": {"AutoModelForCausalLM": "own.Model"},
                "architectures": ["OwnForCausalLM"],
            },
        ),
        (
            "tokenizer_config.json",
            {"auto_map": {"AutoTokenizer": ["own.Slow", "own.Fast"]}, "tokenizer_class": "Own"},
        ),
    ],
)
def test_code_of_a_folder_is_never_run(
    file: str, settings: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: Any) -> str:
        raise AssertionError("the user was asked")

    monkeypatch.setattr("builtins.input", asked)
    ran = folder / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w')")
    write_json(folder / file, **settings)
    for way in WAYS:
        with pytest.raises(ModelError, match="needs code from its own folder"):
            load(folder, way)
    if file != "config.json":
        with pytest.raises(ModelError, match="needs code from its own folder"):
            load_tokenizer(folder)
    assert not ran.exists()


def test_code_beside_classes_of_transformers_is_not_needed(folder: Path) -> None:
    write_json(folder / "config.json", auto_map={"AutoModelForCausalLM": "own.Model"})
    load_base_model(str(folder))


def test_an_adapter_beside_the_weights_is_refused(folder: Path) -> None:
    write_json(folder / "adapter_config.json", base_model_name_or_path="other")
    with pytest.raises(ModelError, match=r"a PEFT adapter .*merge the adapter"):
        load_base_model(str(folder))


UNREAD = (
    "pytorch_model.bin",
    "model.fp16.safetensors",
    "consolidated.safetensors",
    "model.gguf",
    "onnx/model.onnx",
    "original/tokenizer.model",
    "tf_model.h5",
    "README.md",
)


def add_unread(folder: Path) -> None:
    for name in UNREAD:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"something")


def test_the_model_id_is_of_the_files_that_are_read(folder: Path) -> None:
    before = model_id_of(str(folder))
    add_unread(folder)
    assert model_id_of(str(folder)) == before
    assert load_base_model(str(folder)).model_id == before
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content + b" ")
        assert model_id(folder) != before
        (folder / name).write_bytes(content)


def test_the_model_id_of_an_ordinary_folder_stays(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "generation_config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    # SHA-256 over each name, a zero byte and the SHA-256 of the content, in the names' order
    assert model_id(tmp_path).hex()[:16] == "2357e6a45a47fe3b"


class Hub:
    """A hub with one model: it downloads the files that match the patterns into a folder."""

    def __init__(self, repository: Path, target: Path) -> None:
        self._repository, self._target = repository, target

    def snapshot_download(
        self,
        name: str,
        allow_patterns: Collection[str],
        ignore_patterns: str | None = None,
    ) -> str:
        assert name == "someone/model"
        files = [
            p.relative_to(self._repository) for p in self._repository.rglob("*") if p.is_file()
        ]
        names = [file.as_posix() for file in files]
        self._target.mkdir(exist_ok=True)
        for file in filter_repo_objects(
            names, allow_patterns=list(allow_patterns), ignore_patterns=ignore_patterns
        ):
            (self._target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self._repository / file, self._target / file)
        return str(self._target)


@pytest.mark.parametrize("form", ["one file", "parts", "pickle", "sentence encoder"])
def test_a_download_takes_the_files_that_are_read(
    form: str,
    folder: Path,
    model_folder: ModelFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if form == "parts":
        network = load_base_model(str(folder)).network
        (folder / "model.safetensors").unlink()
        network.save_pretrained(folder, max_shard_size="20KB")
    elif form == "pickle":
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    elif form == "sentence encoder":
        shutil.rmtree(folder)
        shutil.copytree(model_folder("encoder"), folder)
        modules = [{"path": "", "type": "Transformer"}, {"path": "pool", "type": "Pooling"}]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "pool").mkdir()
        (folder / "pool" / "config.json").write_text('{"pooling_mode": "max"}')
    read = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    for name in UNREAD:
        if name not in read:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(b"something")
    hub = Hub(folder, tmp_path / "downloaded")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    if form == "pickle":
        read |= {"pytorch_model.bin"}
    base = load_base_model("someone/model")
    found = {p.relative_to(base.folder).as_posix() for p in base.folder.rglob("*") if p.is_file()}
    assert found == read
    assert base.model_id == model_id(folder)


TASK = ClassificationTask.model_validate(
    {"name": "test", "text": "{text}", "question": " it was {word} ."}
    | {"words": ["terrible", "great"], "labels": [0, 1]}
)


def test_a_token_without_an_embedding_is_refused_where_a_text_has_it(folder: Path) -> None:
    from transformers import AutoTokenizer

    from samara.client.forward.body import PerturbedBody

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<new>"])
    tokenizer.add_special_tokens({"pad_token": "<fill>"})
    tokenizer.save_pretrained(folder)
    base = load_base_model(str(folder))
    body = PerturbedBody(base, 0)
    with torch.inference_mode():
        scorer = scorer_for(base, TASK, 40, body)
        texts = "a", "the film was good"
        (short,), (long,) = (scorer.prompt(text).sequences for text in texts)
        together = body([short, long])
        torch.testing.assert_close(together[0, : len(short)], body([short])[0])
    for text in ("a <new> film", "<fill>"):
        with pytest.raises(ModelError, match=r"has the number 2\d, but the model has only"):
            scorer.prompt(text)


@pytest.mark.parametrize("length", [-1, 10**30, int(1e30), None])
def test_a_tokenizer_without_a_length_does_not_limit_texts(length: Any, folder: Path) -> None:
    write_json(folder / "tokenizer_config.json", model_max_length=length)
    base = load_base_model(str(folder))
    assert base.context == 64
    assert (
        len(scorer_for(base, TASK, 40, lambda _: torch.zeros(1)).prompt("film " * 99).sequences[0])
        > 30
    )


def test_a_configuration_without_a_limit_of_positions(folder: Path) -> None:
    base = load_base_model(str(folder))
    base.network.config.max_position_embeddings = -1
    assert base.context > 10**9


def test_tokens_of_a_data_set_are_one_object_each() -> None:
    """Equal but separate integers would take several times the memory of the texts."""
    base = load_base_model("embedded")
    vocabulary = base.tokenizer.get_vocab()
    rare = max(vocabulary, key=vocabulary.__getitem__)
    assert vocabulary[rare] > 256  # smaller ones are one object in Python itself
    one, other = base.token_ids(rare), base.token_ids(rare)
    assert vocabulary[rare] in one
    assert all(first is second for first, second in zip(one, other, strict=True))
