"""Every input of a cached value changes its key, so that no wrong value is found."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from samara.client.forward.representation_store import make_representation_store
from samara.client.forward.trunk_cache import DiskCache, MemoryCache, make_trunk_cache
from samara.client.streaming import loading as streaming
from samara.shared.model import cache_key as keys
from samara.shared.model import damping
from samara.shared.model.cache_key import cache_key
from samara.shared.model.damping import load_damping
from samara.shared.model.quantized import Int8Embedding
from samara.shared.model.scorers import Prompt
from samara.shared.model.sentence_pooling import SentencePooling
from samara.shared.settings.sections import ModelSettings

IDS = (1, 2, 3)
OUTPUT = torch.ones(3, 4)


@dataclass(frozen=True)
class Model:
    """The parts of a base model on which keys depend."""

    network: Any
    model_id: bytes = bytes(32)
    family: str = "causal"
    pooling: SentencePooling = field(default_factory=SentencePooling)
    quantization: str = "none"
    features: int = 4
    folder: Path = Path("model")
    blocks: tuple[Any, ...] = ()


def network(
    dtype: torch.dtype = torch.float32, attention: str = "sdpa", tables: object = None
) -> Any:
    config = SimpleNamespace(hidden_size=4, _attn_implementation=attention)
    config.get_text_config = lambda: config
    return SimpleNamespace(
        dtype=dtype,
        device=torch.device("cpu"),
        config=config,
        get_input_embeddings=lambda: tables,
    )


BASE = Model(network())
SCORER: dict[str, Any] = {
    "kind": "EncoderScorer",
    "_task": "digest",
    "max_length": 64,
    "labels": 2,
    "label_embeddings": torch.eye(2),
}


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


def version_of(changed: str) -> Callable[[], AbstractContextManager[None]]:
    return lambda: patched(
        keys, "_version", lambda name: f"{name} {'2' if name == changed else '1'}"
    )


MODELS: dict[str, Model] = {
    "model": replace(BASE, model_id=bytes(31) + b"1"),
    "family": replace(BASE, family="masked"),
    "pooling": replace(BASE, pooling=SentencePooling(("cls",))),
    "quantization": replace(BASE, quantization="nf4"),
    "tables": replace(BASE, network=network(tables=Int8Embedding.__new__(Int8Embedding))),
    "dtype": replace(BASE, network=network(torch.bfloat16)),
    "attention": replace(BASE, network=network(attention="eager")),
}
MACHINES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "torch": version_of("torch"),
    "transformers": version_of("transformers"),
    "device": lambda: patched(keys, "_device", lambda device: "cuda other"),
}
THREADS = {"threads": lambda: patched(torch, "get_num_threads", lambda: 99)}
SCORERS: dict[str, dict[str, Any]] = {
    "label words": SCORER | {"label_embeddings": torch.eye(2).flip(0)},
    "type of the words": SCORER | {"label_embeddings": torch.eye(2).double()},
    "task": SCORER | {"_task": "another"},
    "maximum length": SCORER | {"max_length": 32},
    "kind of scorer": SCORER | {"kind": "CausalScorer"},
    "another tensor": SCORER | {"offset": torch.zeros(1)},
}


def trunk(folder: Path, base: Model = BASE, first_block: int = 2) -> DiskCache:
    made = make_trunk_cache(base, first_block, 2**20, folder)  # type: ignore[arg-type]
    assert isinstance(made, DiskCache)
    return made


def representations(folder: Path, base: Model = BASE, scorer: dict[str, Any] = SCORER) -> DiskCache:
    fake: Any = SimpleNamespace(**scorer)
    disk = make_representation_store(base, fake, 2**20, folder).disk  # type: ignore[arg-type]
    assert disk is not None
    return disk


@pytest.mark.parametrize("make", [trunk, representations])
def test_kept_outputs_are_found_under_their_own_inputs_alone(
    make: Callable[..., DiskCache], tmp_path: Path
) -> None:
    output = torch.ones(3, 4 if make is trunk else 6)
    make(tmp_path).put(IDS, output)
    assert make(tmp_path).get(IDS) is not None
    assert make(tmp_path).get((1, 2, 4)) is None
    for name, base in MODELS.items():
        assert make(tmp_path, base).get(IDS) is None, name
    for name, machine in (MACHINES | THREADS).items():
        with machine():
            assert make(tmp_path).get(IDS) is None, name
    if make is trunk:
        assert trunk(tmp_path, first_block=1).get(IDS) is None
    else:
        for name, scorer in SCORERS.items():
            assert representations(tmp_path, scorer=scorer).get(IDS) is None, name
        assert trunk(tmp_path).get(IDS) is None
    assert make(tmp_path).get(IDS) is not None


def test_outputs_in_memory_are_of_as_many_threads() -> None:
    cache = MemoryCache(2**20)
    cache.put(IDS, OUTPUT)
    with THREADS["threads"]():
        assert cache.get(IDS) is None
    assert cache.get(IDS) is OUTPUT


def test_a_damping_is_measured_again_under_any_other_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured: list[int] = []
    prompt = Prompt(((1, 2), (3,)), ((1,), (0,)), ((5,), (6,)))

    def load(base: Model = BASE, own: Prompt = prompt) -> None:
        def represent(prompts: Any) -> Any:
            measured.append(len(prompts))
            return torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).numpy()

        load_damping("random-tokens", base, lambda: [own], represent)  # type: ignore[arg-type]

    load()
    load()
    assert len(measured) == 1
    machines = MACHINES | THREADS | {"version": lambda: patched(damping, "VERSION", 99)}
    prompts = (
        replace(prompt, sequences=((1, 2), (4,))),
        replace(prompt, supervised=((0,), (0,))),
        replace(prompt, targets=((5,), (7,))),
    )
    for base in MODELS.values():
        load(base)
    for own in prompts:
        load(BASE, own)
    for machine in machines.values():
        with machine():
            load()
    assert len(measured) == 1 + len(MODELS) + len(prompts) + len(machines)


def test_quantized_blocks_have_a_folder_of_their_own_under_any_other_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[Path] = []
    monkeypatch.setattr(streaming, "quantize_block", lambda *_: {})
    monkeypatch.setattr(streaming, "replace_with_empty_quantized_layers", lambda *_: None)

    def write(folder: Path, index: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
        written.append(folder)
        return {}

    monkeypatch.setattr(streaming, "write_block_file", write)
    settings = ModelSettings()

    def quantize(base: Model) -> None:
        streaming._quantized_locations(settings, replace(base, blocks=(None,)), [{}])  # type: ignore[arg-type]

    nf4 = replace(BASE, quantization="nf4")
    with version_of("")():
        quantize(nf4)
        for base in MODELS.values():
            if base.quantization == "none":
                quantize(replace(base, quantization="nf4"))
        quantize(replace(nf4, quantization="int8"))
    for machine in (*MACHINES.values(), version_of("bitsandbytes")):
        with version_of("")(), machine():
            quantize(nf4)
    assert len(written) == 12
    assert len(set(written)) == len(written)


def test_a_key_is_made_of_content() -> None:
    tensor = torch.tensor([1.0, 2.0])
    assert cache_key("k", of=tensor) == cache_key("k", of=tensor.clone())
    made = [
        cache_key("k", of=tensor),
        cache_key("k", of=tensor.view(2, 1)),
        cache_key("k", of=tensor.view(torch.int32)),
        cache_key("k", of=bytes(tensor.numpy().tobytes())),
        cache_key("k", other=tensor),
        cache_key("kind", of=tensor),
        cache_key("k", of=torch.tensor(1.0)),
    ]
    assert len(set(made)) == len(made)
    with pytest.raises(TypeError, match="cannot be made from PosixPath"):
        cache_key("k", of=Path())
