"""Results of made-up runs, like those of finished runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samara.shared.results.result import RESULT_FILE, SCHEMA_VERSION
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.label_scores import Confusion

EXAMPLES = 100
TAIL = "ab" * 32


def figures(right: float, rng: np.random.Generator) -> dict[str, Any]:
    """Figures of a client that answers this share of its examples correctly, evenly by label."""
    hits = rng.multinomial(round(right * EXAMPLES), [0.5, 0.5])
    misses = rng.multinomial(EXAMPLES - hits.sum(), [0.5, 0.5])
    return of_confusion(np.array([[hits[0], misses[0]], [misses[1], hits[1]]])) | {"auc": right}


def of_confusion(counts: NDArray[np.int64]) -> dict[str, Any]:
    confusion = Confusion(counts)
    return {
        "loss": 1.2 - confusion.accuracy,
        "examples": confusion.examples,
        "accuracy": confusion.accuracy,
        "macro_f1": confusion.macro_f1,
        "confusion": counts.tolist(),
    }


def column(shares: Mapping[int, float], rng: np.random.Generator) -> dict[str, Any]:
    clients = {str(client): figures(share, rng) for client, share in shares.items()}
    whole = np.sum([own["confusion"] for own in clients.values()], axis=0)
    return of_confusion(whole) | {
        "mean_client_accuracy": np.mean([own["accuracy"] for own in clients.values()]),
        "mean_client_macro_f1": np.mean([own["macro_f1"] for own in clients.values()]),
        "mean_client_auc": np.mean([own["auc"] for own in clients.values()]),
        "clients": clients,
    }


def evaluation(number: int, split: str, **columns: dict[str, Any]) -> dict[str, Any]:
    return {
        "event": "evaluation",
        "round": number,
        "split": split,
        "columns": {name.replace("_", "-"): own for name, own in columns.items()},
        "refused": {},
        "bytes_up": 400,
        "bytes_down": 700,
        "seconds": 1.0 + number,
    }


def result_of(
    clients: int = 12, seed: int = 0, personal: bool = True, gain: float = 0.08, **settings: Any
) -> dict[str, Any]:
    """A run of 20 rounds: zero-shot at 60 %, global at 75 %, personalized `gain` above that."""
    rng = np.random.default_rng([clients, seed])
    zero = {client: 0.6 + 0.05 * np.sin(client) for client in range(clients)}
    final = {client: share + 0.15 + rng.normal(0, 0.02) for client, share in zero.items()}
    own = {client: min(0.99, share + gain + rng.normal(0, 0.03)) for client, share in final.items()}
    evaluations = [
        evaluation(0, "validation", **{"global": column(zero, rng)}),
        evaluation(0, "test", **{"global": column(zero, rng)}),
        *[
            evaluation(
                n,
                "validation",
                **{
                    "global": column(
                        {c: zero[c] + (final[c] - zero[c]) * n / 20 for c in zero}, rng
                    )
                },
            )
            for n in (10, 20)
        ],
        evaluation(20, "test", **{"global": column(final, rng)}),
    ]
    if personal:
        half = {client: (zero[client] + final[client]) / 2 for client in zero}
        columns = {
            "base rate": column(dict.fromkeys(zero, 0.5), rng),
            "zero-shot": column(zero, rng),
            "label bias": column(zero, rng),
            "local-only": column(half, rng),
            "global": column(final, rng),
            "personalized": column(own, rng),
        }
        evaluations.append(evaluation(20, "test") | {"columns": columns})
    dotted = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    config = {"adapter.layers": "top:1"}
    config |= {"seed": seed, "data.clients": clients, "rounds": 20, "personal.rounds": 5 * personal}
    rounds = [
        {
            "event": "round",
            "round": number,
            "loss": 0.7 - number / 100,
            "reports": clients,
            "refused": {},
            "problem": "",
            "bytes_up": 160 * clients,
            "bytes_down": 1561 * clients,
            "ledger_bytes": 1400,
            "digest": TAIL,
            "seconds": float(number),
            "clients": {
                str(client): {
                    "loss": 0.7,
                    "examples": 256,
                    "scalars": 32,
                    "bytes_up": 160,
                    "bytes_down": 1561,
                }
                for client in range(clients)
            },
        }
        for number in range(1, 21)
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "config": RunConfig.of(config | dotted, "test").flat(),
        "versions": {"samara-fl": "0.1.0", "python": "3.11.7"},
        "run_id": "0011223344556677",
        "model_id": TAIL,
        "layout_hash": TAIL,
        "elements": 1536,
        "clients": {
            str(client): {
                "examples": 256,
                "platform": "Linux",
                "threads": 1,
                "torch": "2.13.0",
                "split_examples": {"train": 256, "validation": 30 + client},
                "fingerprints": {
                    split: f"{client:03x}{index}"
                    for index, split in enumerate(("train", "validation", "test"))
                },
            }
            for client in range(clients)
        },
        "scalar_ratios": {
            "mean": 20 * 32 / 1536,
            "max": 20 * 32 / 1536,
            "clients": {str(client): 20 * 32 / 1536 for client in range(clients)},
        },
        "automatic": {},
        "names": {},
        "shared_texts": {"test": 100 * clients, "shared": 0},
        "no_gain": "",
        "passes": {str(client): 20 * 2 * 32 for client in range(clients)},
        "rounds": rounds,
        "evaluations": evaluations,
        "bytes_up": 160 * clients * 20,
        "bytes_down": 1561 * clients * 20,
        "wall_seconds": 100.0,
        "peak_memory_bytes": 2**29,
        "final_round": 20,
        "final_digest": TAIL,
    }


def write_result(folder: Path, result: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT_FILE).write_text(json.dumps(result))
    return folder
