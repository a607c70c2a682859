"""Loading a model's tokenizer."""

from pathlib import Path
from typing import Any

from samara.shared.errors import ModelError
from samara.shared.model.model_folder import check_tokenizer_files
from samara.shared.model.optional_imports import triton_hidden
from samara.shared.model.sentence_modules import NETWORK_SETTINGS, read_settings


def _no_tokenizer(folder: Path) -> ModelError:
    return ModelError(
        f"{folder}: there is no tokenizer; copy the model's tokenizer.json and "
        "tokenizer_config.json to this folder"
    )


@triton_hidden()
def load_tokenizer(folder: Path) -> Any:
    """Return the fast tokenizer of a model's folder.

    Raises:
        ModelError: if the tokenizer is missing, cannot be read, or needs custom code.
    """
    import transformers

    check_tokenizer_files(folder)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    # transformers raises errors of many types, with advice about other libraries
    except Exception as error:
        names = {file.name for name in ("*token*", "vocab*") for file in folder.glob(name)}
        if names - {"tokenizer_config.json", "special_tokens_map.json"}:
            raise ModelError(f"{folder}: the tokenizer cannot be loaded: {error}") from error
        raise _no_tokenizer(folder) from error
    # without a vocabulary transformers makes a tokenizer of special tokens, in T5 with one more
    if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) < 2:
        raise _no_tokenizer(folder)
    if not tokenizer.is_fast:
        raise ModelError(
            f"{folder}: there is no tokenizer.json; save the tokenizer as a fast tokenizer"
        )
    if read_settings(folder, NETWORK_SETTINGS).get("do_lower_case"):
        normalizer = tokenizer.backend_tokenizer.normalizer
        if normalizer is None or normalizer.normalize_str("A") != "a":
            raise ModelError(
                f"{folder / NETWORK_SETTINGS}: do_lower_case = true, but the tokenizer keeps "
                "capital letters; save the tokenizer with a normalizer that lowers the case, or "
                "set do_lower_case = false"
            )
    return tokenizer
