"""Loading a model's tokenizer."""

from pathlib import Path
from typing import Any

from samara.shared.errors import ModelError
from samara.shared.model.model_folder import check_tokenizer_files
from samara.shared.model.optional_imports import triton_hidden
from samara.shared.model.sentence_modules import NETWORK_SETTINGS, read_settings


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
    except Exception as error:  # of many types, with advice about other libraries
        if any(folder.glob("*token*")) or any(folder.glob("vocab*")):
            raise ModelError(f"{folder}: its tokenizer cannot be loaded: {error}") from error
        raise ModelError(
            f"{folder}: it has no tokenizer; copy tokenizer.json and tokenizer_config.json of the "
            "model beside its weights"
        ) from error
    if not tokenizer.is_fast:
        raise ModelError(
            f"{folder}: its tokenizer has no tokenizer.json; save it once as a fast tokenizer"
        )
    if read_settings(folder, NETWORK_SETTINGS).get("do_lower_case"):
        normalizer = tokenizer.backend_tokenizer.normalizer
        if normalizer is None or normalizer.normalize_str("A") != "a":
            raise ModelError(
                f"{folder / NETWORK_SETTINGS}: do_lower_case = true, but the tokenizer does not "
                "lower the case; save the tokenizer with a normalizer that does, or set it to "
                "false"
            )
    return tokenizer
