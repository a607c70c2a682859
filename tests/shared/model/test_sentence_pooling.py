"""A sentence's vector equals that of sentence-transformers, or the module is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from samara.client.forward.body import PerturbedBody
from samara.shared.errors import ModelError
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.model_folder import model_id
from samara.shared.model.scorers import EncoderScorer, scorer_for
from samara.shared.tasks.kinds import ClassificationTask

pytestmark = pytest.mark.filterwarnings("ignore")  # of sentence-transformers

ModelFolder = Callable[[str], Path]
TEXTS = ["the film was good .", "a day", "the meal was not very cold ! a walk", "kind"]
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
OLDER = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
SIZE = 32


def vectors(base: BaseModel) -> torch.Tensor:
    task = ClassificationTask.model_validate(
        {"name": "t", "text": "{text}", "question": "{word}", "words": ["bad", "good"]}
        | {"labels": [0, 1]}
    )
    body = PerturbedBody(base, 0)
    with torch.inference_mode():
        scorer = scorer_for(base, task, 40, body)
        assert isinstance(scorer, EncoderScorer)
        sequences = [scorer.prompt(text).sequences[0] for text in TEXTS]
        return scorer.pooled(body(sequences), torch.tensor([len(ids) for ids in sequences]))


def assert_the_same(folder: Path) -> BaseModel:
    """Compare with sentence-transformers, which reads the same folder."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    expected = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(
        TEXTS, normalize_embeddings=True, convert_to_tensor=True
    )
    base = load_base_model(str(folder))
    found = vectors(base)
    assert found.shape == expected.shape == (len(TEXTS), base.features)
    assert nn.functional.cosine_similarity(found, expected).min() >= 0.99999
    return base


def saved(folder: Path, encoder: Path, mode: Any, *behind: Any) -> Path:
    """Let sentence-transformers write a model."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    pooling = modules.Pooling(SIZE, pooling_mode=mode)
    network = modules.Transformer(str(encoder))
    SentenceTransformer(modules=[network, pooling, *behind]).save(str(folder))
    return folder


@pytest.fixture
def encoder(model_folder: ModelFolder, tmp_path: Path) -> Path:
    shutil.copytree(model_folder("encoder"), tmp_path / "plain")
    (tmp_path / "plain" / "modules.json").unlink()
    return tmp_path / "plain"


def with_modules(folder: Path, kinds: dict[str, str], files: dict[str, Any]) -> Path:
    """Write a list of modules by their folders, and files of settings."""
    listed = [
        {"idx": i, "name": str(i), "path": p, "type": k} for i, (p, k) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


def pooled_by(folder: Path, settings: dict[str, Any], package: str = "", at: str = "p") -> Path:
    kinds = {"": f"{package}Transformer", at: f"{package}Pooling"}
    return with_modules(folder, kinds, {f"{at}/config.json": settings})


@pytest.mark.parametrize("mode", [*MODES, ("max", "mean"), tuple(reversed(MODES))], ids=str)
def test_every_mode_as_it_is_saved_today(mode: Any, encoder: Path, tmp_path: Path) -> None:
    base = assert_the_same(saved(tmp_path / "saved", encoder, mode))
    assert str(base.pooling) == (mode if isinstance(mode, str) else "+".join(mode))


@pytest.mark.parametrize(
    "modes", [*([mode] for mode in MODES), ["mean", "max"], MODES, []], ids=str
)
def test_every_mode_by_the_keys_of_older_files(modes: list[str], encoder: Path) -> None:
    keys = {key: mode in modes for mode, key in OLDER.items()}
    settings = {"word_embedding_dimension": SIZE} | keys
    folder = pooled_by(encoder, settings, "sentence_transformers.models.", "pooling of this model")
    if modes != MODES:
        assert_the_same(folder)
    in_order = [mode for mode in MODES if mode in modes] or ["mean"]
    assert load_base_model(str(folder)).pooling.modes == tuple(in_order)


def dense(name: str) -> list[Any]:
    from sentence_transformers.sentence_transformer import modules

    torch.manual_seed(0)
    return {
        "tanh": lambda: [modules.Dense(SIZE, 12)],
        "identity": lambda: [modules.Dense(SIZE, 48, bias=False, activation_function=None)],
        "residual": lambda: [modules.Dense(SIZE, SIZE, use_residual=True)],
        "projected residual": lambda: [modules.Dense(SIZE, 8, use_residual=True)],
        "two after scaling": lambda: [
            modules.Normalize(),
            modules.Dense(SIZE, 20, activation_function=nn.GELU()),
            modules.Dropout(0.5),
            modules.Dense(20, 16, activation_function=nn.ReLU()),
            modules.Normalize(),
        ],
    }[name]()


@pytest.mark.parametrize(
    "behind", ["tanh", "identity", "residual", "projected residual", "two after scaling"]
)
def test_modules_behind_the_pooling(behind: str, encoder: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    folder = saved(tmp_path / "saved", encoder, "mean", *dense(behind))
    assert_the_same(folder)
    before = model_id(folder)
    weights = next(folder.glob("*_Dense/model.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert model_id(folder) != before


def test_an_encoder_without_a_list_of_modules_is_pooled_by_the_mean(encoder: Path) -> None:
    config = json.loads((encoder / "config.json").read_text())
    assert config["architectures"] == ["BertModel"]
    assert_the_same(encoder)


def test_the_modules_of_an_export_are_those_of_the_base(encoder: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    from samara.client.tuning.model_export import export_model

    base = load_base_model(str(saved(tmp_path / "saved", encoder, "max", *dense("tanh"))))
    export_model(base, tmp_path / "exported")
    torch.testing.assert_close(vectors(assert_the_same(tmp_path / "exported")), vectors(base))


TRANSFORMER = {"": "sentence_transformers.models.Transformer"}
MEAN = {"1_Pooling/config.json": {"pooling_mode": "mean"}}
POOLED = TRANSFORMER | {"1_Pooling": "sentence_transformers.models.Pooling"}
DENSE = {"in_features": SIZE, "out_features": 8, "bias": True}


@pytest.mark.parametrize(
    ("kinds", "files", "message"),
    [
        (POOLED, {"1_Pooling/config.json": {"pooling_mode": "median"}}, "pooling by median"),
        (POOLED, {"1_Pooling/config.json": {"pooling_mode": []}}, "pooling by nothing"),
        (
            POOLED,
            {"1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "pooling_mode_new": True}},
            "pooling by .*pooling_mode_new",
        ),
        (POOLED, {}, r"1_Pooling/config\.json: this file .* is missing"),
        (TRANSFORMER, {}, "no Pooling follows"),
        (
            POOLED | {"2_LSTM": "sentence_transformers.models.LSTM"},
            MEAN,
            "the module LSTM is not supported",
        ),
        (
            POOLED | {"2_Own": "own_code.Module"},
            MEAN,
            r"the module own_code\.Module is not supported",
        ),
        (
            {"": "custom_st.Transformer", "1_Pooling": "Pooling"},
            MEAN,
            r"the first module is .*custom_st",
        ),
        (
            {"0_Transformer": "Transformer", "1_Pooling": "Pooling"},
            MEAN,
            r"0_Transformer: the text model .* must be in",
        ),
        (POOLED | {"2_Dense": "Dense"}, MEAN, r"2_Dense/config\.json: this file .* is missing"),
        (
            POOLED | {"2_Dense": "Dense"},
            MEAN | {"2_Dense/config.json": DENSE},
            r"2_Dense/model\.safetensors: this file .* is missing",
        ),
        (
            POOLED | {"2_Normalize": "Normalize"},
            MEAN | {"2_Normalize/config.json": {"module_input_name": "token_embeddings"}},
            "module_input_name = token_embeddings",
        ),
        (
            POOLED,
            MEAN | {"sentence_bert_config.json": {"transformer_task": "fill-mask"}},
            "fill-mask",
        ),
        (
            POOLED,
            MEAN
            | {
                "config_sentence_transformers.json": {
                    "default_prompt_name": "q",
                    "prompts": {"q": "query: "},
                }
            },
            "puts 'query: ' before every text",
        ),
        (
            POOLED,
            MEAN | {"config_sentence_transformers.json": {"model_type": "SparseEncoder"}},
            "is a SparseEncoder",
        ),
        (POOLED, MEAN | {"sentence_bert_config.json": {"do_lower_case": True}}, "do_lower_case"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    kinds: dict[str, str], files: dict[str, Any], message: str, encoder: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        load_base_model(str(with_modules(encoder, kinds, files)))


@pytest.mark.parametrize(
    "activation", ["own.Module", "torch.nn.Linear", "torch.nn.PReLU", "os.abort"]
)
def test_an_activation_is_a_function_of_torch(activation: str, encoder: Path) -> None:
    from safetensors.torch import save_file

    settings = DENSE | {"activation_function": activation}
    files = MEAN | {"2_Dense/config.json": settings}
    folder = with_modules(encoder, POOLED | {"2_Dense": "Dense"}, files)
    weights = {"linear.weight": torch.ones(8, SIZE), "linear.bias": torch.ones(8)}
    save_file(weights, folder / "2_Dense" / "model.safetensors")
    with pytest.raises(ModelError, match="the activation is"):
        load_base_model(str(folder))


def test_the_mean_and_the_first_token_leave_the_model_id_as_it_was(encoder: Path) -> None:
    before = model_id(encoder)
    for settings, changes in (
        ({"pooling_mode_cls_token": True}, False),
        ({"pooling_mode": "mean"}, False),
        ({"pooling_mode": "max"}, True),
        ({"pooling_mode": "lasttoken"}, True),
    ):
        assert (model_id(pooled_by(encoder, settings)) != before) == changes
