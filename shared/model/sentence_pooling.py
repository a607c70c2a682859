"""Pooling of a sentence encoder, and the modules applied to the pooled vector.

Every supported module computes the same function as in sentence-transformers. An unsupported module
causes an error that names it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samara.shared.errors import ModelError
from samara.shared.model.damaged_files import stored_types
from samara.shared.model.sentence_modules import (
    MODULE_LIST,
    MODULE_SETTINGS,
    NETWORK_SETTINGS,
    Module,
    dense_weights,
    list_modules,
    read_modes,
    read_settings,
)

_VECTOR = "sentence_embedding"
_REMEDY = (
    "Samara supports Transformer, Pooling, Dense and Normalize; choose another sentence encoder"
)


class Dense(nn.Module):
    """A linear layer on the pooled vector with an activation and an optional residual.

    Args:
        in_features: size of the input.
        out_features: size of the output.
        bias: whether the layer has a bias.
        activation: activation function, which is applied to the layer's output.
        use_residual: whether the input is added to the output, after a projection if their sizes
            differ.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        activation: nn.Module,
        use_residual: bool,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias)
        self.activation_function = activation
        self._adds_input = use_residual
        if use_residual and in_features != out_features:
            self.residual = nn.Linear(in_features, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        output: Tensor = self.activation_function(self.linear(x))
        if self._adds_input:
            output = output + (self.residual(x) if hasattr(self, "residual") else x)
        return output


class Normalize(nn.Module):
    """Scales vectors to unit length."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., n] to [..., n]."""
        return nn.functional.normalize(x, dim=-1)


class SentencePooling(nn.Module):
    """Computes a sentence's vector from its last hidden states.

    Args:
        modes: pooling modes, whose results are concatenated.
        modules: modules on the pooled vector, in their order.

    Attributes:
        modes: pooling modes.
    """

    def __init__(self, modes: Sequence[str] = ("mean",), modules: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.modes = tuple(modes)
        self._modules_behind = nn.Sequential(*modules)

    @property
    def is_plain(self) -> bool:
        """True if the vector is only the mean of the states, or the first token's state."""
        only_scales = all(isinstance(module, Normalize) for module in self._modules_behind)
        return only_scales and self.modes in (("mean",), ("cls",))

    def __str__(self) -> str:
        names = [] if self.is_plain else [type(m).__name__ for m in self._modules_behind]
        return ", ".join(["+".join(self.modes), *names])

    def size(self, features: int) -> int:
        """Return the size of a sentence's vector, given the size of a hidden state."""
        dense = [module for module in self._modules_behind if isinstance(module, Dense)]
        return dense[-1].linear.out_features if dense else features * len(self.modes)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Pool hidden states.

        Args:
            hidden: last hidden states, float32 [m, S, features], padded on the right.
            lengths: number of tokens of each sequence, int64 [m].

        Returns:
            float32 [m, size].
        """
        parts = [_MODES[mode](hidden, lengths) for mode in self.modes]
        pooled: Tensor = self._modules_behind(parts[0] if len(parts) == 1 else torch.cat(parts, 1))
        return pooled


def _weighted(hidden: Tensor, weights: Tensor) -> Tensor:
    return torch.bmm(weights[:, None], hidden)[:, 0]


def _counted(hidden: Tensor, lengths: Tensor) -> Tensor:
    """Return a mask with 1 at tokens and 0 at padding, float32 [m, S]."""
    index = torch.arange(hidden.shape[1], device=hidden.device)
    return (index < lengths[:, None]).to(hidden.dtype)


def _mean(hidden: Tensor, lengths: Tensor) -> Tensor:
    counted = _counted(hidden, lengths)
    return _weighted(hidden, counted / counted.sum(1, keepdim=True))


def _mean_by_root(hidden: Tensor, lengths: Tensor) -> Tensor:
    counted = _counted(hidden, lengths)
    return _weighted(hidden, counted / counted.sum(1, keepdim=True).sqrt())


def _mean_by_position(hidden: Tensor, lengths: Tensor) -> Tensor:
    places = _counted(hidden, lengths).cumsum(1) * _counted(hidden, lengths)
    return _weighted(hidden, places / places.sum(1, keepdim=True))


def _largest(hidden: Tensor, lengths: Tensor) -> Tensor:
    padding = _counted(hidden, lengths)[..., None] == 0
    return hidden.masked_fill(padding, -torch.inf).amax(1)


def _first(hidden: Tensor, lengths: Tensor) -> Tensor:
    return hidden[:, 0]


def _last(hidden: Tensor, lengths: Tensor) -> Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]


_MODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _first,
    "max": _largest,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_by_root,
    "weightedmean": _mean_by_position,
    "lasttoken": _last,
}


def load_pooling(folder: Path, features: int) -> SentencePooling:
    """Load the modules after a sentence encoder's network.

    Without a list of modules, the pooling is the mean of the hidden states.

    Args:
        folder: folder of the model.
        features: size of a hidden state.

    Raises:
        ModelError: if a module is missing, damaged or unsupported.
    """
    modules = list_modules(folder)
    if not modules:
        if (folder / "1_Pooling").is_dir() and not (folder / MODULE_LIST).is_file():
            raise ModelError(
                f"{folder}: there is a folder 1_Pooling, but no {MODULE_LIST}; download the whole "
                "model"
            )
        return SentencePooling()
    _check_network(folder, modules[0])
    if len(modules) < 2 or modules[1].kind != "Pooling":
        raise ModelError(f"{folder / MODULE_LIST}: no Pooling follows the Transformer; {_REMEDY}")
    modes = read_modes(modules[1].folder)
    size = features * len(modes)
    behind = list[nn.Module]()
    for kind, place in modules[2:]:
        if kind == "Dropout":  # no effect outside training
            continue
        if kind not in ("Dense", "Normalize"):
            raise ModelError(
                f"{folder / MODULE_LIST}: the module {kind} is not supported; {_REMEDY}"
            )
        settings = read_settings(place, required=kind == "Dense")
        _check_names(place, settings)
        if kind == "Normalize":
            behind.append(Normalize())
        else:
            behind.append(dense := _load_dense(place, settings, size))
            size = dense.linear.out_features
    return SentencePooling(modes, behind).eval().requires_grad_(False)


def _check_network(folder: Path, first: Module) -> None:
    """Check that the encoder's settings do not change how its network reads a text.

    Raises:
        ModelError: if a setting differs. The message names the setting.
    """
    if first.kind != "Transformer":
        raise ModelError(f"{folder / MODULE_LIST}: the first module is {first.kind}; {_REMEDY}")
    if first.folder != folder:
        raise ModelError(
            f"{first.folder}: the text model of the sentence encoder is in this folder, but must "
            f"be in {folder}; load the encoder once with sentence-transformers and save it"
        )
    settings = read_settings(folder, NETWORK_SETTINGS)
    text = (settings.get("modality_config") or {}).get("text") or {}
    for key, value, usual in (
        ("transformer_task", settings.get("transformer_task"), "feature-extraction"),
        ("module_output_name", settings.get("module_output_name"), "token_embeddings"),
        ("method", text.get("method"), "forward"),
        ("method_output_name", text.get("method_output_name"), "last_hidden_state"),
    ):
        if value not in (None, usual):
            raise ModelError(
                f"{folder / NETWORK_SETTINGS}: {key} = {value}, but Samara supports only {usual}; "
                "choose another sentence encoder"
            )
    model = read_settings(folder, "config_sentence_transformers.json")
    if (kind := model.get("model_type", "SentenceTransformer")) != "SentenceTransformer":
        raise ModelError(
            f"{folder}: the model is a {kind}, not a sentence encoder; choose a sentence encoder"
        )
    prompt = (model.get("prompts") or {}).get(model.get("default_prompt_name"))
    if prompt:
        raise ModelError(
            f"{folder / 'config_sentence_transformers.json'}: this model puts {prompt!r} before "
            "every text; set default_prompt_name to null, and write this prompt into the text of "
            "the task"
        )


def _check_names(folder: Path, settings: dict[str, Any]) -> None:
    for key in ("module_input_name", "module_output_name"):
        if settings.get(key) not in (None, _VECTOR):
            raise ModelError(
                f"{folder / MODULE_SETTINGS}: {key} = {settings[key]}, but only modules on "
                f"{_VECTOR} are supported; choose another sentence encoder"
            )


def _load_dense(folder: Path, settings: dict[str, Any], size: int) -> Dense:
    file = dense_weights(folder)
    stored_types(file)
    try:
        in_features, out_features = int(settings["in_features"]), int(settings["out_features"])
        bias, use_residual = settings.get("bias", True), settings.get("use_residual", False)
        activation = _activation(folder, settings.get("activation_function", "torch.nn.Tanh"))
        dense = Dense(in_features, out_features, bias, activation, use_residual)
        dense.load_state_dict(_read_tensors(file))
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise ModelError(
            f"{folder}: the weights do not match {MODULE_SETTINGS} ({error}); download the model "
            "again"
        ) from error
    if in_features != size:
        raise ModelError(
            f"{folder / MODULE_SETTINGS}: in_features = {in_features}, but the module before it "
            f"returns {size} numbers; download the model again"
        )
    return dense


def _read_tensors(file: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    if file.suffix == ".safetensors":
        return load_file(file)
    tensors: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return tensors


def _activation(folder: Path, name: Any) -> nn.Module:
    """Return the torch activation whose class has this name; the identity if the name is None."""
    if name is None:
        return nn.Identity()
    kind: Any = getattr(nn, str(name).rpartition(".")[2], None)
    try:
        function = kind() if str(name).startswith("torch.nn.") else None
    except TypeError:  # arguments are required
        function = None
    if not isinstance(function, nn.Module) or function.state_dict():
        raise ModelError(
            f"{folder / MODULE_SETTINGS}: the activation is {name}, but Samara supports only "
            "functions of torch.nn without weights; choose another sentence encoder"
        )
    return function
