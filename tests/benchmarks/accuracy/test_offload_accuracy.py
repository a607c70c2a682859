"""The measures of the benchmarks of first-order training beside a host."""

import gzip
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.accuracy.emulated_steps import emulated_step
from benchmarks.accuracy.offload_accuracy import METHODS, REFERENCE, Benchmark
from benchmarks.accuracy.offload_perplexity import (
    Comparison,
    Setting,
    measure,
    render_table,
    time_to_reach,
    timed_curve,
)
from benchmarks.accuracy.rate_search import FACTOR
from benchmarks.accuracy.rows import Row, Rows
from benchmarks.accuracy.token_sequences import (
    Sequences,
    batch_of,
    read_texts,
    split,
)


def test_a_step_with_the_ratios_of_table_1() -> None:
    # Forward, then the transfer, which is longer than the backward pass, then the update.
    zero = emulated_step(0.28, 0.56, 0.0, 1.0, 32, False)
    assert zero == pytest.approx(0.28 + 0.93 + 1.92)
    # Layer by layer the host decides; with few numbers the accelerator does, and what it does more.
    assert emulated_step(0.28, 0.56, 0.0, 1.0, 32, True) == pytest.approx(1.92)
    assert emulated_step(0.28, 0.56, 0.1, 0.001, 32, True) == pytest.approx(0.94, abs=0.001)


def test_the_time_at_which_a_curve_reaches_a_perplexity() -> None:
    times, values = [0.0, 10.0, 20.0], [30.0, 20.0, 10.0]
    assert time_to_reach(times, values, 30.0) == 0.0
    assert time_to_reach(times, values, 15.0) == 15.0
    assert time_to_reach(times, values, 9.0) is None


def test_checks_are_part_of_the_time_of_a_curve() -> None:
    points = [{"step": 0, "checks": 0, "test": 9.0}, {"step": 4, "checks": 1, "test": 8.0}]
    row = {"curve": points, "check_seconds": [6.0], "pass_seconds": 2.0}
    assert timed_curve(row, 0.5) == ([0.0, 5.0], [9.0, 8.0])


def test_texts_that_several_files_have_are_read_once(tmp_path: Path) -> None:
    lines = [json.dumps({"passage": text}) + "\n" for text in ("one", "two")]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as opened:
        opened.writelines(lines[1:] * 2)
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"]
    assert sorted(read_texts(files, "passage")) == ["one", "two"]
    assert read_texts(files, "passage") == read_texts(files[::-1], "passage")


class Characters:
    """A tokenizer of characters."""

    bos_token_id = 0

    def __call__(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        assert not add_special_tokens
        return SimpleNamespace(input_ids=list(map(ord, text)))


def test_no_text_is_in_two_splits() -> None:
    texts = [letter * 5 for letter in "abcdef"]  # six tokens each, with the one that begins it
    found = split(texts, Characters(), 4, 2)
    assert [len(found.validation), len(found.test), len(found.train)] == [2, 2, 3]
    splits = [set(each.flatten().tolist()) - {0} for each in vars(found).values()]
    assert [len(each) for each in splits] == [2, 2, 2]
    assert not splits[0] & splits[1]
    assert not (splits[0] | splits[1]) & splits[2]
    with pytest.raises(ValueError, match="4 texts"):
        split(texts[:4], Characters(), 4, 2)


def test_the_table_counts_the_learning_of_projectors() -> None:
    def row(perplexities: list[float], checks: list[float]) -> Row:
        points = [
            {"step": 10 * index, "checks": min(index, len(checks)), "test": each}
            for index, each in enumerate(perplexities)
        ]
        return {
            "curve": points,
            "check_seconds": checks,
            "pass_seconds": 2.0,
            "rate": 1e-3,
            "biases": [0.5] * len(checks),
        }

    result = Comparison(row([9.0, 8.0, 7.0], []), row([9.0, 8.0, 7.5], [20.0]), 4.0, 1.0)
    lines = render_table(result).splitlines()
    assert "| 8.00 | 40 | 20 | 0.50 | 0.25 |" in lines
    assert "| 7.00 | 80 | not reached | – | – |" in lines


def test_a_batch_is_a_function_of_the_step() -> None:
    sequences = torch.arange(40)[:, None]
    first, again, next_ = (batch_of(sequences, step, 8, 0) for step in (0, 0, 1))
    assert torch.equal(first, again)
    assert not set(first.flatten().tolist()) & set(next_.flatten().tolist())


class Losses(Benchmark):
    """A benchmark whose runs only have a validation loss, least at a given rate."""

    best = 1e-3

    def run(self, name: str, seed: int, steps: int, rate: float) -> Row:
        assert (seed, steps) == (0, 40)
        return self.rows.add({"validation_loss": abs(math.log(rate / self.best))})


@pytest.mark.parametrize(("power", "runs"), [(0, 3), (1, 3), (2, 4), (-1, 4), (9, 6), (-9, 6)])
def test_a_rate_is_searched_until_both_neighbours_are_worse(
    tmp_path: Path, power: int, runs: int
) -> None:
    benchmark = Losses("m", "", "d", {}, tmp_path, 40, Rows(tmp_path / "rows.jsonl"))
    benchmark.best = METHODS[REFERENCE].centre * FACTOR**power
    found = benchmark.search_rate(REFERENCE)
    assert len(list(benchmark.rows)) == runs
    if abs(power) < 5:
        assert found == pytest.approx(benchmark.best)
    assert benchmark.search_rate("lsp-8-4") == found


def test_the_equal_time_is_that_of_the_reference_with_its_learning(tmp_path: Path) -> None:
    compute = {"forward": 1.0, "backward": 2.0, "layers": 6, "full": 1000, "lsp-8": 1}
    key = {"model": "m", "data_set": "d"}
    run = key | {"kind": "run", "seed": 0, "steps": 40}
    rows = Rows(tmp_path / "rows.jsonl")
    rows.add(key | {"kind": "compute"} | compute)
    rows.add(run | {"method": REFERENCE, "step_seconds": 3.3, "check_seconds": 30.0})
    rows.add(run | {"method": "full", "step_seconds": 3.0, "check_seconds": 0.0})
    rows.add(run | {"method": "lora", "step_seconds": 1.0, "check_seconds": 0.0})
    benchmark = Benchmark("m", "", "d", {}, tmp_path, 40, rows)
    time = 40 * 3.3 + 30  # and the update of one layer of six, of one number of a thousand
    assert benchmark.steps_in_equal_time("lora") == int(time / 1.0)
    zero = 1 + 3 * 0.93 / 0.84 + 3 * 1.92 / 0.84
    assert benchmark.steps_in_equal_time("full") == int(time / zero)
    # The number of steps is written down: later runs change the costs, and would change it.
    rows.add(run | {"method": REFERENCE, "step_seconds": 3.3, "check_seconds": 3000.0})
    assert benchmark.steps_in_equal_time("full") == int(time / zero)


def zero_numbers(rows: Rows) -> int:
    found = rows.find(kind="compute")
    assert found is not None
    return int(found["numbers"])


def test_a_run_counts_updates_apart_from_passes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    tokens = torch.randint(40, (40, 8))
    sequences = Sequences(tokens[:32], tokens[32:36], tokens[36:])
    setting = Setting(context=8, batch=4, zero_steps=4, evaluations=2, search_share=0.5)
    rows = Rows(tmp_path / "rows.jsonl")
    result = measure(tmp_path / "model", sequences, setting, rows)
    zero, lsp = result.curves()
    assert len(zero[0]) == 3
    assert len(lsp[0]) >= 3  # its number of steps follows from measured times
    assert zero[0][-1] == pytest.approx(4 * result.zero_step)
    assert lsp[0][-1] > result.lsp["curve"][-1]["step"]  # a pass each, and the check
    assert len(result.lsp["biases"]) == len(result.lsp["check_seconds"]) == 1
    assert result.lsp["update_seconds"] > 0
    count = len(list(rows))
    assert measure(tmp_path / "model", sequences, setting, rows) == result
    assert len(list(rows)) == count
    matrices = measure(tmp_path / "model", sequences, setting, rows, linear=True)
    assert matrices.linear is not None
    assert len(list(rows)) > count
    # All but the embedding and three norms: the head is a matrix of its own here.
    assert matrices.linear["sent"] == zero_numbers(rows) - 40 * 16 - 3 * 16
    assert result.zero_step > matrices.linear_step
    assert set(matrices.named_curves()) > set(result.named_curves())
    assert "matrices alone" in render_table(matrices)
