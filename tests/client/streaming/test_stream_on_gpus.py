"""Streamed blocks on pretended GPUs: the scores of plain transformers, and planted mistakes."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import transformers
from accelerator import MissingWaitError, pretended_gpus
from torch import Tensor

import samara.client.streaming.stream
from samara.client.streaming.block_store import allocate
from samara.client.streaming.block_transfer import CudaTransfer
from samara.client.streaming.loading import LoadedModel, load_model
from samara.client.streaming.stream import DEFAULT_SCHEDULING, BlockStream, Scheduling
from samara.shared.errors import ModelError
from samara.shared.settings.sections import ModelSettings

IDS = torch.tensor([[7, 8, 9, 10, 11], [12, 13, 14, 15, 16]])
ModelFolder = Callable[[str], Path]


def wanted(folder: Path) -> Tensor:
    network = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        logits: Tensor = network(IDS).logits
    return logits


def load(folder: Path, device: str, tier: str, **more: object) -> LoadedModel:
    given = {"path": str(folder), "stream": tier, "torch_device": device} | more
    return load_model(ModelSettings.model_validate(given, by_alias=False, by_name=True))


def streamed(loaded: LoadedModel, scheduling: Scheduling = DEFAULT_SCHEDULING) -> Tensor:
    """Compute logits block by block, twice; the second pass reuses buffers."""
    assert loaded.store is not None
    stream = BlockStream(loaded.base, loaded.store, scheduling=scheduling)
    network = loaded.base.network
    with torch.inference_mode():
        for _ in range(2):
            logits: Tensor = network(IDS.to(network.device)).logits
        stream.free_buffers()
    return logits


@pytest.mark.parametrize(
    ("tier", "device", "scheduling"),
    [
        ("disk", "cuda:1", DEFAULT_SCHEDULING),
        ("host", "cuda", DEFAULT_SCHEDULING),
        pytest.param("disk", "cuda", Scheduling(reuse=False), marks=pytest.mark.exhaustive),
        pytest.param("host", "cuda:1", Scheduling(reuse=False), marks=pytest.mark.exhaustive),
        pytest.param("disk", "cuda", Scheduling(overlap=False), marks=pytest.mark.exhaustive),
    ],
)
def test_a_gpu_computes_with_streamed_blocks(
    tier: str, device: str, scheduling: Scheduling, model_folder: ModelFolder
) -> None:
    folder = model_folder("causal")
    with pretended_gpus() as gpus:
        found = streamed(load(folder, device, tier), scheduling)
        assert found.device == gpus.place(device)
        (other,) = set(gpus.launches) - {found.device}
        assert not gpus.launches[other]
        found = found.cpu()
    assert torch.equal(found, wanted(folder))


def test_two_gpus_stream_side_by_side(model_folder: ModelFolder) -> None:
    folder = model_folder("causal")
    with pretended_gpus(), ThreadPoolExecutor(2) as pool:
        models = [load(folder, device, "host") for device in ("cuda:0", "cuda:1")]
        found = [logits.cpu() for logits in pool.map(streamed, models)]
    for logits in found:
        assert torch.equal(logits, wanted(folder))


@pytest.mark.exhaustive
@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_quantized_blocks_stream_to_a_gpu(quantization: str, model_folder: ModelFolder) -> None:
    folder = model_folder("causal")
    plain = load(folder, "cpu", "off", quantization=quantization)
    with torch.inference_mode():
        expected = plain.base.network(IDS).logits
    with pretended_gpus():
        found = streamed(load(folder, "cuda:1", "disk", quantization=quantization)).cpu()
    assert torch.equal(found, expected)


def test_buffers_may_be_written_by_threads_in_any_mode() -> None:
    """A separate thread fills the buffers, outside of inference mode, as with a real GPU."""
    with torch.inference_mode():
        memory = allocate(4, torch.device("cpu"))
    thread = threading.Thread(target=memory.fill_, args=[7])
    thread.start()
    thread.join()
    assert memory.tolist() == [7] * 4


def test_a_buffer_in_the_mode_of_its_first_user_is_caught(
    model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(size: int, device: torch.device, pinned: bool = False) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=device, pin_memory=pinned)

    monkeypatch.setattr(samara.client.streaming.stream, "allocate", careless)
    with (
        pretended_gpus(),
        pytest.raises(RuntimeError, match="Inplace update to inference tensor"),
    ):
        streamed(load(model_folder("causal"), "cuda", "host"))


@pytest.mark.parametrize("scheduling", [DEFAULT_SCHEDULING, Scheduling(reuse=False)])
def test_an_upload_that_waits_for_nobody_is_caught(
    scheduling: Scheduling, model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaTransfer, "record_event", lambda transfer: None)
    with pretended_gpus() as gpus:
        loaded = load(model_folder("causal"), "cuda", "host")
        with pytest.raises(MissingWaitError, match="may still use it"):
            streamed(loaded, scheduling)
        gpus.faults.clear()


def test_blocks_left_on_the_host_are_caught(
    model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaTransfer, "upload", lambda transfer, host, device, event: host)
    with (
        pretended_gpus(),
        pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"),
    ):
        streamed(load(model_folder("causal"), "cuda", "host"))


def test_a_gpu_that_is_not_there_is_named(model_folder: ModelFolder) -> None:
    with pretended_gpus(), pytest.raises(ModelError, match=r"cuda:2: torch cannot use this device"):
        load(model_folder("causal"), "cuda:2", "host")


def test_auto_streams_what_a_gpu_has_no_room_for(
    model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pretended_gpus():
        assert load(model_folder("causal"), "cuda", "auto").store is None
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 1000))
        store = load(model_folder("causal"), "cuda", "auto").store
    assert store is not None
    assert store.in_memory
