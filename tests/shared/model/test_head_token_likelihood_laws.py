"""Laws of token likelihood: a federation is central training, and logits never exist at once."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from federations import Settings, config_of
from transformers import LlamaConfig, LlamaForCausalLM

from samara.shared.model import head
from samara.shared.model.head import VOCABULARY_TILE_BYTES, token_predictions
from samara.shared.protocol.replay import to_float32
from samara.simulations.exports.adapter import FinishedRun
from samara.simulations.simulate import simulate

WORDS = ("film", "day", "meal", "walk", "good", "bad", "warm", "awful")


def test_a_federation_of_texts_is_central_training(settings: Settings, tmp_path: Path) -> None:
    """One step per round on all examples, with shared directions: the clients' mean is exact."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 30), ("validation", 3), ("test", 3)):
        texts = [" ".join(rng.choice(WORDS, int(rng.integers(2, 12)))) for _ in range(count)]
        rows = [{"text": text, "user": f"u{index % 3}"} for index, text in enumerate(texts)]
        file = tmp_path / "data" / f"{split}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {
        "task": "texts",
        "data.path": str(tmp_path / "data"),
        "data.partition": "user",
        "steps": 1,
        "queries": 4,
        "batch": 100,
        "seed-policy": "shared",
        "aggregation.rule": "mean",
        "method": "global",
        "evaluate.every": 0,
    }
    states = []
    for clients in (3, 1):
        partition = {"data.partition": "user" if clients > 1 else "iid"}
        out = str(tmp_path / str(clients))
        config = config_of(settings | own | partition, data__clients=clients, out=out)
        states.append(to_float32(FinishedRun.at(simulate(config)).model()))
    federated, central = states
    assert np.abs(central).max() > 0
    np.testing.assert_allclose(federated, central, atol=2e-3 * np.abs(central).max())


def test_logits_of_a_large_vocabulary_never_exist_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    network = LlamaForCausalLM(
        LlamaConfig(vocab_size=128_256, num_attention_heads=1, num_key_value_heads=1, **sizes)
    )
    base: Any = SimpleNamespace(
        network=network, body=network.model, folder="large", vocabulary=128_256
    )
    hidden, tokens = torch.randn(2, 150, 8), torch.randint(128_256, (150,)).tolist()
    tiles, plain = list[int](), head.head_logits

    def counted(*given: Any) -> torch.Tensor:
        logits = plain(*given)
        tiles.append(logits.nbytes)
        return logits

    monkeypatch.setattr(head, "head_logits", counted)
    with torch.inference_mode():
        likely, _ = token_predictions(base, hidden, torch.tensor([150]), [range(150)], tokens)
        whole = network.lm_head(hidden).log_softmax(-1)
    assert sum(tiles) == 2 * 150 * 128_256 * 4
    assert max(tiles) <= VOCABULARY_TILE_BYTES
    wanted = whole[:, torch.arange(150), tokens]
    torch.testing.assert_close(likely, wanted, atol=1e-5, rtol=1e-5)
