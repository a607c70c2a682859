"""Tiny random models of the classes in transformers' auto mappings."""

import copy
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import peft
import torch
import transformers
from numpy.typing import NDArray
from streams import TASK, TEXTS
from tiny_models import save_tokenizer
from transformers.models.auto import modeling_auto

from samara.client.forward.body import PerturbedBody
from samara.client.forward.resident import ResidentForward
from samara.client.forward.streamed import make_forward_engine
from samara.client.forward.trunk_cache import make_trunk_cache
from samara.client.spaces.full import FullSpace
from samara.client.streaming.loading import load_model
from samara.shared.errors import ModelError, SamaraError
from samara.shared.model.layer_selection import adapted_layers
from samara.shared.model.loading import BaseModel, load_base_model, load_structure
from samara.shared.model.lora_fa import LoRAFALinear, empty_adapter, inject
from samara.shared.model.peft import write_peft_adapter
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.quantized import Int8Embedding, Quantization, QuantizedLinear
from samara.shared.model.replay_torch import backend_for
from samara.shared.model.scorers import Prompt, Scorer, scorer_for
from samara.shared.protocol.directions import directions
from samara.shared.settings.sections import AdapterSettings, ModelSettings

TOLERANCE = 1e-4
MOST_PARAMETERS = 20_000_000

SMALL: dict[str, Any] = {
    # width and depth, as models of different ages call them
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim"), 32),
    **dict.fromkeys(
        ("embedding_size", "word_embed_proj_dim", "projection_dim", "out_hidden_size"), 32
    ),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "n_inner", "d_inner"), 48
    ),
    **dict.fromkeys(
        ("encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "mlp_hidden_size"), 48
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"), 3),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 64),
    # mixtures of experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
    # latent attention and state spaces
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"), 8),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), 8),
    # pictures and sounds
    **dict.fromkeys(("image_size",), 28),
    **dict.fromkeys(("patch_size",), 14),
    "dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 5,
    "eos_token_id": 5,
    "rotary_dim": 8,
    "use_cache": False,
}
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 4, "mamba_n_groups": 1},
    "dots3_note": {"num_key_value_heads": 4},
    "esmc": {"num_key_value_heads": 4},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"mamba_n_heads": 4, "mamba_n_groups": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "mamba2": {"num_heads": 8, "n_groups": 1},
}
for _kind in ("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32"):
    OWN[_kind] = {"num_key_value_heads": 4}
"""What the configuration of a model type needs besides."""
SPREAD = {"mobilebert": 0.05}
"""Standard deviation of weights of a model type without normalization, whose sums would grow."""


class Architecture(NamedTuple):
    """A class of transformers, and its uses.

    Attributes:
        family: causal, masked or encoder.
        kind: its model type.
        name: name of the class.
    """

    family: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.family} {self.name}"


def architectures() -> list[Architecture]:
    """Every causal, masked and encoder class of text models in the auto mappings."""
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    names = {
        "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "masked": masked,
        "encoder": {
            kind: name for kind, name in modeling_auto.MODEL_MAPPING_NAMES.items() if kind in masked
        }
        | dict(modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES),
    }
    found: dict[tuple[str, str], Architecture] = {}
    for family, mapping in names.items():
        for kind, names_of_kind in sorted(mapping.items()):
            name = names_of_kind if isinstance(names_of_kind, str) else names_of_kind[0]
            found.setdefault((family, name), Architecture(family, kind, name))
    return list(found.values())


def tiny_config(architecture: Architecture, vocabulary: int) -> Any:
    """A configuration of a class with small numbers for all settings of size."""
    cls = getattr(transformers, architecture.name).config_class
    own = OWN.get(architecture.kind, {})
    if architecture.family == "causal" and "is_decoder" in vars(cls()):
        own = own | {"is_decoder": True}
    return _tiny(cls, vocabulary, own)


def _tiny(cls: Any, vocabulary: int, own: dict[str, Any]) -> Any:
    usual = cls()
    names = set(vars(usual)) | set(cls.attribute_map)
    chosen = {
        name: value for name, value in (SMALL | {"vocab_size": vocabulary}).items() if name in names
    }
    for name in cls.sub_configs:
        value = getattr(usual, name, None)
        if value is not None and isinstance(value, transformers.PretrainedConfig):
            chosen[name] = _tiny(type(value), vocabulary, own.get(name, {})).to_dict()
    return cls(**chosen | own)


class NotBuiltError(Exception):
    """The reason why transformers has no tiny model of a class."""


def build(architecture: Architecture, vocabulary: int) -> Any:
    """A model of a class with random weights, large enough that every part affects the output."""
    config = tiny_config(architecture, vocabulary)
    cls = getattr(transformers, architecture.name)
    size = 0
    with suppress(Exception), torch.device("meta"):
        size = sum(parameter.numel() for parameter in cls(copy.deepcopy(config)).parameters())
    if size > MOST_PARAMETERS:
        raise NotBuiltError(f"has {size:,} parameters though its settings are small")
    torch.manual_seed(0)
    network = cls(config)
    with torch.no_grad():
        for module in network.modules():
            weight = getattr(module, "weight", None)
            if isinstance(module, torch.nn.Linear | torch.nn.Embedding) or _is_conv1d(module):
                weight.normal_(0, SPREAD.get(architecture.kind, 0.2))
    return network.eval()


def _is_conv1d(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"


class Cells:
    """Samara's results for a model, compared with the same class of transformers.

    Args:
        architecture: class of the model.
        folder: empty folder for it.

    Raises:
        NotBuiltError: if transformers itself cannot compute a tiny model of the class.
    """

    def __init__(self, architecture: Architecture, folder: Path) -> None:
        self.folder = folder
        try:
            network = build(architecture, save_tokenizer(folder, architecture.family))
            with torch.no_grad():
                _run(network, (6, 7, 8))  # a configuration that does not fit together fails here
            network.save_pretrained(folder)
        except NotBuiltError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).strip() or 'without a word'}"
            raise NotBuiltError(reason.splitlines()[0]) from error
        if architecture.family == "encoder":
            (folder / "modules.json").write_text("[]")
        self.plain = network.requires_grad_(False)
        self._base: BaseModel | None = None

    def all(self) -> dict[str, str]:
        """Outcome of every cell by its name."""
        return {name: self.outcome(name) for name in CELLS}

    def outcome(self, name: str) -> str:
        """Return "right", or a description of a refusal, wrong scores or another error."""
        try:
            with warnings.catch_warnings():  # transformers and PEFT warn of much at odd models
                warnings.simplefilter("ignore")
                error = CELLS[name](self)
        except SamaraError as refused:
            return f"refused: {str(refused).replace(f'{self.folder}: ', '')}"
        except Exception as failed:
            return f"traceback: {type(failed).__name__}: {failed}"
        return "right" if error <= TOLERANCE else f"wrong: {error}"

    def readout(self) -> float:
        return self._base_error(self._loaded())

    def top(self) -> float:
        return self._adapted_error("top:1")[0]

    def inner(self) -> float:
        return self._adapted_error("all")[0]

    def nf4(self) -> float:
        return self._quantized_error("nf4")

    def int8(self) -> float:
        return self._quantized_error("int8")

    def streamed(self) -> float:
        loaded = load_model(ModelSettings(path=str(self.folder), stream="disk"))
        stream = loaded.make_stream(loaded.base)
        assert stream is not None
        scorer = _scorer(loaded.base)
        adapter, nothing = empty_adapter()
        engine = make_forward_engine(loaded.base, adapter, scorer, streamed=True)
        found = engine.scores(nothing, _prompts(scorer))[0]
        return _error(found, plain_scores(self.plain, scorer))

    def full(self) -> float:
        base = load_base_model(str(self.folder))
        scorer = _scorer(base)
        space = FullSpace(base, backend_for(torch.device("cpu"), 1))
        engine = ResidentForward(space.adapter, scorer, PerturbedBody(base, 0))
        prompts = _prompts(scorer)
        found = space.evaluate(
            lambda adapters: engine.scores(adapters, prompts), np.array([7], np.uint64), 0.1
        )
        z = space.perturbation(7, 0, space.size, None)
        errors = []
        for sign, scores in zip((1, -1), found, strict=True):
            moved, first = copy.deepcopy(self.plain), 0
            parameters = dict(moved.named_parameters())
            for tensor in space.tensors:
                step = z[first : first + tensor.size].view(tensor.shape)
                parameters[tensor.name].add_(sign * 0.1 * step)
                first += tensor.size
            errors.append(_error(scores, plain_scores(moved, scorer, self.plain)))
        return max(errors)

    def export(self) -> float:
        error, base, adapter, center = self._adapted_error("top:1")
        exported = self.folder / "peft"
        structure = load_structure(str(self.folder))
        write_peft_adapter(structure, str(self.folder), adapter.layout, center, exported)
        network = peft.PeftModel.from_pretrained(copy.deepcopy(self.plain), exported)
        engine, scorer = base
        found = engine.scores(Perturbations.from_arrays(adapter.layout, center), _prompts(scorer))
        return max(error, _error(found[0], plain_scores(network, scorer, self.plain)))

    def _loaded(self) -> BaseModel:
        if self._base is None:
            self._base = load_base_model(str(self.folder))
        return self._base.copy_sharing_weights()

    def _base_error(self, base: BaseModel) -> float:
        scorer = _scorer(base)
        adapter, nothing = empty_adapter()
        engine = ResidentForward(adapter, scorer, PerturbedBody(base, 0))
        return _error(engine.scores(nothing, _prompts(scorer))[0], plain_scores(self.plain, scorer))

    def _quantized_error(self, kind: Quantization) -> float:
        """The error of quantized layers, against the plain model with the dequantized weights."""
        base = load_base_model(str(self.folder), quantization=kind)
        plain = copy.deepcopy(self.plain)
        for name, module in base.network.named_modules():
            if isinstance(module, QuantizedLinear):
                layer = plain.get_submodule(name)
                weight = module.dequantized()
                layer.weight.copy_(weight.T if _is_conv1d(layer) else weight)
            elif isinstance(module, Int8Embedding):
                table = plain.get_submodule(name)
                table.weight.copy_(module(torch.arange(module.num_embeddings)) / module.factor)
        whole, self.plain = self.plain, plain
        try:
            return self._base_error(base)
        finally:
            self.plain = whole

    def _adapted_error(self, layers: str) -> tuple[float, Any, Any, Any]:
        """The error of two perturbations in one pass, against weights that include the adapter."""
        base = self._loaded()
        scorer = _scorer(base)
        settings = AdapterSettings(layers=layers, rank=2, alpha=2.0)
        try:
            adapted_layers(base, settings)
        except ModelError as error:
            if "set adapter.projections" not in str(error):
                raise
            chosen = str(error).rpartition("some of: ")[2].replace(" ", "")
            settings = settings.model_copy(update={"projections": chosen})
        body = next(name for name, module in base.network.named_modules() if module is base.body)
        adapter = inject(base, settings, scorer.labels)
        first = adapter.first_block
        cache = make_trunk_cache(base, first, 2**20)
        engine = ResidentForward(adapter, scorer, PerturbedBody(base, first, cache))
        random = np.random.default_rng(1)
        center = random.normal(0, 0.5, adapter.layout.element_count).astype(np.float32)
        z = directions(np.arange(1, dtype=np.uint64), len(center), "gaussian")
        found = engine.scores(
            Perturbations.from_arrays(adapter.layout, center, z, 0.25), _prompts(scorer)
        )
        unchanged = plain_scores(self.plain, scorer)
        errors = []
        for sign, scores in zip((1, -1), found, strict=True):
            numbers = center + np.float32(sign * 0.25 / 2048) * z[0].astype(np.float32)
            moved = copy.deepcopy(self.plain)
            for name, module in base.body.named_modules():
                if isinstance(module, LoRAFALinear):
                    elements, rows = adapter.layout.tensor_slice(name)
                    b = torch.from_numpy(numbers[elements].reshape(rows, -1))
                    layer = moved.get_submodule(f"{body}.{name}" if body else name)
                    added = b @ module.a
                    layer.weight.add_(added.T if _is_conv1d(layer) else added)
            expected = plain_scores(moved, scorer, self.plain)
            assert _error(unchanged, expected) > TOLERANCE, "the adapters show"
            errors.append(_error(scores, expected))
        return max(errors), (engine, scorer), adapter, center


CELLS: dict[str, Callable[[Cells], float]] = {
    "readout": Cells.readout,
    "top:1": Cells.top,
    "all layers": Cells.inner,
    "nf4": Cells.nf4,
    "int8": Cells.int8,
    "streamed": Cells.streamed,
    "tune full": Cells.full,
    "PEFT": Cells.export,
}


def _scorer(base: BaseModel) -> Scorer:
    with torch.inference_mode():
        return scorer_for(base, TASK, 32, PerturbedBody(base, 0))


def _prompts(scorer: Scorer) -> list[Prompt]:
    return [scorer.prompt(text) for text in TEXTS]


def plain_scores(network: Any, scorer: Scorer, of_labels: Any = None) -> NDArray[np.float32]:
    """Scores of the texts by a network of transformers, one text at a time without padding.

    Args:
        network: the network.
        scorer: scorer with its tokenizer and family.
        of_labels: network that embeds a sentence encoder's labels, if it is another network.
    """
    rows = []
    with torch.no_grad():
        if scorer.base.family == "encoder":
            of_labels = network if of_labels is None else of_labels
            labels = torch.cat([_pooled(of_labels, scorer, text) for text in TASK.prompts()])
            rows = [(_pooled(network, scorer, text) @ labels.T)[0] / 0.05 for text in TEXTS]
        else:
            tokens = [scorer.base.tokenizer.convert_tokens_to_ids(word) for word in TASK.words]
            for prompt in _prompts(scorer):
                logits = _run(network, prompt.sequences[0]).logits[0]
                at = logits[prompt.supervised[0][0]].float()
                rows.append(at.log_softmax(-1)[tokens])
    return torch.stack(rows).numpy()


def _pooled(network: Any, scorer: Scorer, text: str) -> torch.Tensor:
    hidden = _run(network, scorer.prompt(text).sequences[0]).last_hidden_state
    return torch.nn.functional.normalize(hidden.float().mean(1), dim=-1)


def _run(network: Any, ids: tuple[int, ...]) -> Any:
    tokens = torch.tensor([ids])
    return network(input_ids=tokens, attention_mask=torch.ones_like(tokens))


def _error(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    assert np.isfinite(expected).all(), "the plain model has scores"
    return float(np.abs(found - expected).max())


_SLOW = "takes longer than a second to build"
_NO_SIZES = "its sizes do not fit together when they are small"
NOT_BUILT: dict[str, str] = {
    "causal BltForCausalLM": _SLOW,
    "causal DbrxForCausalLM": _NO_SIZES,
    "causal Gemma3nForConditionalGeneration": "needs the library timm",
    "causal Gemma4ForCausalLM": _SLOW,
    "causal Gemma4ForConditionalGeneration": _SLOW,
    "causal Phi4MultimodalForCausalLM": _SLOW,
    "encoder FunnelModel": _NO_SIZES,
    "encoder LukeModel": _SLOW,
    "encoder PerceiverModel": _SLOW,
    "encoder ReformerModel": _NO_SIZES,
    "masked FunnelForMaskedLM": _NO_SIZES,
    "masked LukeForMaskedLM": _SLOW,
    "masked NeoMMEForMaskedLM": _NO_SIZES,
    "masked PerceiverForMaskedLM": _SLOW,
    "masked ReformerForMaskedLM": _NO_SIZES,
    "masked XmodForMaskedLM": "needs a language",
}
"""Classes that are not tried, with the reason."""


CODES = (
    (r"^(\S+) is stored in a different form than .*", r"*other form* of `\1`"),
    (r"^its output for a text depends on .*", "*dependent texts*"),
    (r"^it reads the weight of a layer without .*", "*reads weights*"),
    (r"^PEFT would mistake (\S+) for a part .*", r"*experts of PEFT*: `\1`"),
    (r"^its blocks run more than once, or .*", "*no plain sequence*"),
    (r"^(\w+Error): .*", r"`\1`"),
)
"""Patterns of frequent reasons, and the codes that the page of architectures explains."""


def coded(reason: str) -> str:
    """Return a reason with the code that the page explains, shortened to 160 characters."""
    for pattern, code in CODES:
        reason = re.sub(pattern, code, reason, flags=re.DOTALL)
    return reason[:160]


def row(architecture: Architecture, outcomes: Mapping[str, str]) -> str:
    """The row of a class in the page's table."""
    shown = [outcome.partition(":")[0] for outcome in outcomes.values()]
    reasons = dict.fromkeys(_reason(outcome) for outcome in outcomes.values() if outcome != "right")
    return f"| `{architecture.name}` | {' | '.join(shown)} | {'; '.join(reasons)} |"


def _reason(outcome: str) -> str:
    """The beginning of a refusal, without the names of tensors."""
    reason = outcome.removeprefix("refused: ").splitlines()[0]
    reason = re.sub(r"^\S+ cannot be used as a [a-zA-Z ]+: ", "", reason)
    reason = re.sub(
        r"the checkpoint lacks .*?,? or calls", "the checkpoint lacks tensors, or calls", reason
    )
    reason = reason.partition("; ")[0].replace("|", "/")
    return coded(reason)
