"""The structure of a network: its family, its body below the head, and the body's blocks.

The structure is derived from the classes that a configuration names, and from the nesting of a
network's modules. `samara.client.forward.self_check` checks the result when the model first runs.
"""

import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

from torch import nn

from samara.shared.errors import ModelError
from samara.shared.model.damaged_files import read_json

Family = Literal["causal", "masked", "encoder"]

creating_network = threading.RLock()
"""Lock that a thread holds while transformers creates a network.

During the creation, transformers replaces functions of torch and of all networks for all threads.
If two creations overlapped, these functions would stay replaced.
"""


def detect_family(folder: Path) -> Family:
    """Detect the family of a model folder from its configuration.

    Raises:
        ModelError: if the configuration names no architecture.
    """
    if (folder / "modules.json").is_file():
        return "encoder"
    try:
        settings = read_json(folder / "config.json")
        architecture = str(settings["architectures"][0])
    except (KeyError, TypeError, IndexError) as error:
        raise ModelError(
            f"{folder / 'config.json'}: the file does not name an architecture; add "
            'the model\'s class, such as "architectures": ["LlamaForCausalLM"]'
        ) from error
    is_causal, is_masked = (architecture in names for names in _classes_with_a_head())
    if is_causal and is_masked:  # XLM is both, according to its configuration
        return "causal" if settings.get("causal") or settings.get("is_decoder") else "masked"
    if is_masked or architecture.endswith("ForMaskedLM"):
        return "masked"
    if is_causal or architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return "causal"
    return "encoder"


@cache
def _classes_with_a_head() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of transformers' causal LM classes, and of its masked LM classes.

    A text model with an image encoder counts as a causal LM. A model with an encoder and a decoder
    for text is neither.
    """
    from transformers.models.auto import modeling_auto as auto

    causal = _names(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    pictures = _names(auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    masked = _names(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    both_halves = _names(auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
    return frozenset(causal | (pictures - both_halves)), frozenset(masked - both_halves)


def _names(mapping: Any) -> set[str]:
    return {
        name
        for names in mapping.values()
        for name in ((names,) if isinstance(names, str) else names)
    }


def loader_for(settings: Any, family: Family) -> Any:
    """Return transformers' auto class that loads a configuration as a model of a family.

    Raises:
        ModelError: if the model has an encoder and a decoder that only work together.
    """
    import transformers
    from transformers.models.auto import modeling_auto as auto

    kind = type(settings)
    with_decoder = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    if (
        family == "encoder"
        and kind in with_decoder
        and kind in auto.MODEL_FOR_TEXT_ENCODING_MAPPING
    ):
        return transformers.AutoModelForTextEncoding  # AutoModel would add the decoder
    if getattr(settings, "is_encoder_decoder", False):
        raise ModelError(
            f"{kind.__name__.removesuffix('Config')} has an encoder and a decoder, and Samara "
            "cannot adapt such models; choose a causal LM, a masked LM or a sentence encoder"
        )
    loader: Any = {
        "causal": transformers.AutoModelForCausalLM,
        "masked": transformers.AutoModelForMaskedLM,
        "encoder": transformers.AutoModel,
    }[family]
    if family == "causal" and kind not in loader._model_mapping:
        loader = transformers.AutoModelForImageTextToText
    if kind not in loader._model_mapping:
        raise ModelError(
            f"transformers has no {family} model for {kind.__name__}; correct architectures in "
            "config.json, or choose another model"
        )
    return loader


def body_of(network: Any) -> nn.Module:
    """Return the part of a network below the head: the innermost model that embeds its tokens.

    This is usually transformers' ``base_model``. For OPT, it is the decoder inside ``base_model``,
    because OPT's head calls the decoder directly. For a model of text and pictures, it is the text
    model inside ``base_model``.
    """
    body: nn.Module = network.base_model
    embeddings = _embeddings(network)
    while inner := list(_models_around(embeddings, body)):
        body = inner[0]
    return body


def _embeddings(network: Any) -> nn.Module | None:
    try:
        embeddings: nn.Module = network.get_input_embeddings()
    except (NotImplementedError, AttributeError):
        return None
    return embeddings


def _models_around(embeddings: nn.Module | None, body: nn.Module) -> Iterator[nn.Module]:
    from transformers import PreTrainedModel

    for child in body.children():
        if isinstance(child, PreTrainedModel) and (
            embeddings is None or any(module is embeddings for module in child.modules())
        ):
            yield child


def blocks_of(body: nn.Module, folder: Path) -> nn.ModuleList:
    """Return the transformer blocks of a body: its longest outermost list of modules.

    Raises:
        ModelError: if the body has no list of modules.
    """
    lists = list(_outermost_lists(body))
    if not lists:
        raise ModelError(
            f"{folder}: the model has no list of transformer blocks; choose another model"
        )
    return max(lists, key=len)


def _outermost_lists(module: nn.Module) -> Iterator[nn.ModuleList]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            if len(child):
                yield child
        else:
            yield from _outermost_lists(child)
