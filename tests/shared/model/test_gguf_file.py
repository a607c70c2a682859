"""Models in GGUF files are converted once, equal the file's content, or are refused by name."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_gguf import HEADS, HIDDEN, write_model

from samara.shared.errors import ModelError
from samara.shared.model import gguf_file
from samara.shared.model.loading import load_base_model
from samara.shared.model.model_folder import find_model_folder, model_id_of


def unpermuted(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Undo the order in which llama.cpp stores the rows of q and k for rotary positions."""
    halves = weight.reshape(HEADS, HIDDEN // HEADS // 2, 2, HIDDEN).swapaxes(1, 2)
    return halves.reshape(HIDDEN, HIDDEN)


@pytest.fixture
def file(tmp_path: Path, empty_cache: None) -> Path:
    write_model(tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def test_a_model_holds_the_numbers_of_its_file(
    tmp_path: Path, empty_cache: None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "model.gguf"
    known = write_model(file)
    base = load_base_model(str(file))
    assert base.family == "causal"
    assert base.model_id == hashlib.sha256(file.read_bytes()).digest() == model_id_of(str(file))
    assert base.token_ids("ab c!") == (7, 8, 9)
    weights = base.network.state_dict()
    for name, values in known.items():
        is_rotated = name.endswith(("q_proj.weight", "k_proj.weight"))
        expected = torch.from_numpy(unpermuted(values) if is_rotated else values)
        assert torch.equal(weights[name], expected), name
    assert "MB of float32" in caplog.text


def test_a_file_is_converted_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = find_model_folder(str(file))
    monkeypatch.setattr(gguf_file, "_convert", lambda *_: pytest.fail("converted again"))
    moved = file.rename(file.with_name("other.gguf"))
    assert find_model_folder(str(moved)) == folder
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_an_interrupted_conversion_leaves_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(gguf_file, "sync_folder", stop)
        with pytest.raises(ModelError, match=r"cannot be written: No space left.*free disk space"):
            find_model_folder(str(file))
    assert find_model_folder(str(file)).is_dir()


def test_two_processes_may_convert_at_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert = gguf_file._convert

    def overtaken(source: Path, folder: Path) -> None:
        monkeypatch.setattr(gguf_file, "_convert", convert)
        assert find_model_folder(str(source)).is_dir()
        convert(source, folder)

    monkeypatch.setattr(gguf_file, "_convert", overtaken)
    folder = find_model_folder(str(file))
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_files_that_are_no_models_are_refused_by_name(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"other\.gguf: this is not a GGUF file"):
        find_model_folder(str(other))
    other.write_bytes(file.read_bytes()[:600])
    with pytest.raises(
        ModelError, match=r"other\.gguf: this GGUF file is damaged .*; download it again"
    ):
        find_model_folder(str(other))
    write_model(other, "unheard-of")
    with pytest.raises(ModelError, match=r"other\.gguf: transformers cannot read this GGUF"):
        find_model_folder(str(other))
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelError, match=r"install samara-fl\[gguf\]"):
        find_model_folder(str(file))
