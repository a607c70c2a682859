"""The phone page's integer core agrees with the golden files and with random cases from Python."""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_frames import GOLDEN, check_frames, golden, random_frames
from typescript import RunCore, chromium_runner, node_runner

from samara.shared.errors import ReplayError
from samara.shared.protocol.directions import Distribution, directions, orthogonal_root
from samara.shared.protocol.frames.blob import BlobPart, BlobReceipt
from samara.shared.protocol.frames.evaluation import Evaluation, EvaluationColumn
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import (
    EvaluateInstruction,
    SeedPolicy,
    Split,
    TrainInstruction,
)
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.frames.round_cost import RoundCost
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.reading import read_header, read_ledger
from samara.shared.protocol.ledger.records import Snapshot
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.message_sizes import most_record_bytes, most_task_bytes
from samara.shared.protocol.replay import (
    CoefficientBlock,
    DenseValues,
    Entry,
    Shrink,
    quantize,
    replay,
    to_float32,
)
from samara.shared.protocol.round_delta import (
    PERSONAL_TRACK,
    ConsecutiveSeeds,
    Contributor,
    DerivedSeeds,
    Group,
    PoolSeeds,
    RoundDelta,
)
from samara.shared.protocol.wire import Kind
from samara.shared.tasks.profiled_loss import profiled_cross_entropy

FRAMES, REPLAYS = 6000, 4000
DISTRIBUTIONS: tuple[Distribution, ...] = ("gaussian", "rademacher", "orthogonal")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(node_runner, id="node"),
        pytest.param(chromium_runner, id="chromium", marks=pytest.mark.exhaustive),
    ],
)
def run_core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunCore:
    run: RunCore = request.param(tmp_path_factory.mktemp("core"))
    return run


@pytest.mark.slow
def test_chromium_has_the_golden_replay_and_ledger(tmp_path: Path) -> None:
    run = chromium_runner(tmp_path)
    test_directions_of_the_golden_file(run)
    test_replay_of_the_golden_file(run)
    test_the_golden_ledger_is_followed_by_its_records_and_from_states(run, "ledger-3")


def hexadecimal(seeds: np.ndarray[Any, Any]) -> list[str]:
    return [f"{seed:016x}" for seed in seeds.tolist()]


def decimal(state: np.ndarray[Any, Any]) -> list[str]:
    return [str(number) for number in state.tolist()]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_directions_of_the_golden_file(run_core: RunCore) -> None:
    cases = golden("directions.json") + golden("orthogonal.json")
    asked = [["direction", case["seed"], case["count"], case["distribution"]] for case in cases]
    expected = [{"sha256": case["sha256"], "head": case["head"]} for case in cases]
    assert run_core(asked) == expected


def test_orthogonal_directions_of_many_sizes_are_pythons(run_core: RunCore) -> None:
    random = np.random.default_rng(37)
    sizes = [1, 2, 3, 128, 384, 1541, *random.integers(1, 5000, size=60).tolist()]
    seeds = random.integers(2**64, size=len(sizes), dtype=np.uint64)
    asked, expected = [], []
    for seed, size in zip(seeds, sizes, strict=True):
        z = directions(np.array([seed]), size, "orthogonal")[0]
        asked.append(["direction", f"{seed:016x}", size, "orthogonal"])
        expected.append({"sha256": sha256(z.tobytes()), "head": z[:64].tolist()})
    assert run_core(asked) == expected


def test_roots_of_orthogonal_directions_are_pythons(run_core: RunCore) -> None:
    cases = [(2**63 + 5, 1, 32, 0), (7, 40, 128, 0), (7, 2**31, 65535, PERSONAL_TRACK)]
    asked = [["orthogonalRoot", f"{seed:016x}", *rest] for seed, *rest in cases]
    assert run_core(asked) == [f"{orthogonal_root(*case):016x}" for case in cases]


def test_seeds_and_orders_of_the_golden_file(run_core: RunCore) -> None:
    cases = golden("seeds.json")
    given = {
        "query_seeds": (("root", "seed_stream", "steps", "queries"), "seeds"),
        "round_root": (("seed", "round", "track"), "root"),
        "batch_order": (("root", "client", "step", "examples"), "order"),
        "pool_seeds": (("root", "indices"), "seeds"),
        "pool_indices": (("root", "seed_stream", "steps", "queries", "size"), "indices"),
    }
    assert set(cases) - set(given) == {"cohort_keys"}  # only a server picks cohorts
    asked, expected = [], []
    for name, (keys, result) in given.items():
        first, *rest = name.split("_")
        function = first + "".join(word.capitalize() for word in rest)
        for case in cases[name]:
            asked.append([function, *(case[key] for key in keys)])
            expected.append(case[result])
    assert run_core(asked) == expected


def test_frames_of_the_golden_files_are_read_and_written_again(
    run_core: RunCore,
) -> None:
    files = ("frames.json", *(f"frames-{number}.json" for number in range(2, 10)))
    frames = [case for name in files for case in golden(name).values()]
    results = run_core([["frame", case["frame"]] for case in frames])
    assert {bytes.fromhex(case["frame"])[3] for case in frames} == set(Kind)
    for case, result in zip(frames, results, strict=True):
        assert result == {"fields": case["fields"], "frame": case["frame"]}


def test_replay_of_the_golden_file(run_core: RunCore) -> None:
    cases = golden("replay.json")
    asked = []
    for case in cases:
        start = (np.arange(case["count"]) - case["count"] // 2) * 2**46
        asked.append(["replay", decimal(start), case["entries"], case["distribution"]])
    for case, result in zip(cases, run_core(asked), strict=True):
        assert {key: result[key] for key in ("head", "sha256")} == {
            key: case[key] for key in ("head", "sha256")
        }


@pytest.mark.parametrize("ledger", ["ledger", "ledger-3"])
def test_the_golden_ledger_is_followed_by_its_records_and_from_states(
    run_core: RunCore, ledger: str
) -> None:
    said = golden(f"{ledger}.json")
    rounds = said["rounds"]
    snapshot = (GOLDEN / ledger / "0000000002.snap").read_bytes()
    header, layout = read_header(GOLDEN / ledger), Layout.from_json(said["layout"])
    *_, end = verify_ledger(GOLDEN / ledger, layout)
    records = list(read_ledger(GOLDEN / ledger))
    state = b"".join(Snapshot(header, records[-1].link, end.state).parts())
    first, second, third = (record.sent() for record in records)
    tail, first_record = first + second + third, len(first)

    def step(number: int, tail: bytes, snapshot: bytes = b"") -> dict[str, Any]:
        goal = {"round": number, "digest": rounds[number]["digest"]}
        return goal | {"tail": tail.hex(), "snapshot": snapshot.hex()}

    last = step(3, tail)
    wrong = bytearray(tail)
    wrong[40] ^= 1
    ways = [
        [last],
        [step(3, third, snapshot)],
        [step(3, b"", state)],
        [step(1, tail[:first_record]), step(3, b"", state), last],
        [step(1, tail[:first_record]), last],  # the first record is skipped the second time
        [step(1, tail[:first_record]), step(3, third, snapshot), last],
    ]
    refused = [
        [step(3, bytes(wrong))],
        [step(3, tail[:-1])],
        [step(3, tail[first_record:])],
        [step(2, tail)],
        [step(3, third, snapshot[:-1] + bytes([snapshot[-1] ^ 1]))],
        [{**last, "digest": rounds[1]["digest"]}],
    ]
    given = (said["layout"], said["run_id"], 0)
    results = run_core([["catchUp", *given, steps] for steps in ways + refused])
    weights = np.array(said["weights"], "<f4").tobytes().hex()
    expected = {
        "round": 3,
        "digest": rounds[3]["digest"],
        "head": rounds[3]["record_hash"],
        "weights": weights,
    }
    assert results == [expected] * len(ways) + ["LedgerError"] * len(refused)


def test_the_page_takes_as_many_bytes_as_other_clients(run_core: RunCore) -> None:
    sizes = [0, 512, 100_000, 2**25]
    expected = [[most_record_bytes(size), most_task_bytes(size)] for size in sizes]
    assert run_core([["mostBytes", size] for size in sizes]) == expected


def test_layouts_of_the_golden_files(run_core: RunCore) -> None:
    cases = [golden("ledger.json"), golden("basis.json")]
    texts = [case["layout"] for case in cases]
    bad = [
        "",
        "[]",
        texts[0].replace('"rows":6', '"rows":0'),
        texts[0].replace("gaussian", "uniform"),
        texts[0].replace("06c0", "06c1"),
    ]
    results = run_core([["layout", text] for text in texts + bad])
    assert results == [
        *(
            {"hash": case["layout_hash"], "size": Layout.from_json(case["layout"]).size}
            for case in cases
        ),
        *["LedgerError"] * len(bad),
    ]


def made_train(random: np.random.Generator) -> TrainInstruction:
    has_components = random.random() < 0.2
    policy = SeedPolicy.SHARED if has_components else SeedPolicy(int(random.integers(3)))
    pool = int(random.integers(1, 9)) if policy is SeedPolicy.POOL else 0
    steps = 1 if has_components else int(random.integers(1, 6))
    return TrainInstruction(
        *(random.bytes(8), int(random.integers(1, 2**32)), int(random.integers(2**32))),
        *(steps, int(random.integers(1, 6)), int(random.integers(1, 2**32))),
        *(policy, int(random.integers(2**64, dtype=np.uint64))),
        *(10.0 ** float(random.normal()) for _ in range(4)),
        *(random.bytes(32), random.bytes(32)),
        *(int(random.integers(2**64, dtype=np.uint64)) if pool else 0, pool),
        curvature_every=0 if has_components else int(random.integers(3)),
        differences="components" if has_components else random.choice(["forward", "central"]),
        joint_clip=float(random.choice([0.0, 1.5])),
        is_profiled=not has_components and bool(random.integers(2)),
    )


def made_group(random: np.random.Generator) -> Group:
    count = int(random.integers(1, 7))
    sources = (
        random.integers(2**64, size=count, dtype=np.uint64),
        DerivedSeeds(int(random.integers(2**63)), int(random.integers(2**32)), 1, count),
        PoolSeeds(7, random.integers(2**32, size=count, dtype=np.uint32)),
        ConsecutiveSeeds(int(random.integers(2**63)), count),
    )
    scalars = random.integers(-(2**31), 2**31, size=count, dtype=np.int32)
    block = CoefficientBlock(int(random.integers(11)), scalars)
    return Group(int(random.integers(2**32)), sources[int(random.integers(len(sources)))], block)


def made_delta(random: np.random.Generator) -> RoundDelta:
    entries: list[Group | Shrink | DenseValues] = [made_group(random) for _ in range(3)]
    entries.append(Shrink(int(random.integers(1, 63))))
    track = int(random.choice([0, 5, PERSONAL_TRACK]))
    if track == PERSONAL_TRACK:
        values = random.integers(-(2**61), 2**61, size=3, endpoint=True)
        entries.append(DenseValues(int(random.integers(2**32)), values))
    clients = sorted(set(random.integers(2**32, size=3).tolist()))
    contributors = tuple(Contributor(client, 9, 2) for client in clients)
    return RoundDelta(int(random.integers(1, 2**32)), track, bytes(8), contributors, tuple(entries))


def made_report(random: np.random.Generator) -> Report:
    gradients = random.normal(0, 100, (2, 3)).astype(np.float32)
    curvature = float(np.float32(random.normal())) if random.random() < 0.5 else None
    report = Report(random.bytes(8), 4, 120, 0.5, gradients, curvature=curvature)
    return (
        replace(report, gradients=gradients[0], summed_steps=7) if random.random() < 0.5 else report
    )


FRAMES_OF: tuple[Callable[[np.random.Generator], Any], ...] = (
    made_train,
    made_delta,
    made_report,
    lambda random: Hello(
        *random.integers(2**32 - 1, size=3).tolist(), random.bytes(32), "{}", "ä€"
    ),
    lambda random: EvaluateInstruction(
        random.bytes(8), 3, 0, Split(int(random.integers(3))), random.bytes(32), random.bytes(32)
    ),
    lambda random: Evaluation(
        random.bytes(8),
        4,
        tuple(
            EvaluationColumn(name, float(random.normal()), random.integers(2**32, size=(2, 2)))
            for name in ("global", "personalized")
        ),
    ),
    lambda random: Refusal(random.bytes(8), *random.integers(2**16, size=3).tolist(), (1, 2)),
    lambda random: BlobPart(random.bytes(32), 500, int(random.integers(400)), random.bytes(100)),
    lambda random: BlobReceipt(random.bytes(8), 4, random.bytes(32), int(random.integers(2**28))),
    lambda random: RoundCost(random.bytes(8), 4, 100.0, float(random.integers(100)), 3.5),
)


def test_random_frames_are_read_refused_and_written_as_by_python(run_core: RunCore) -> None:
    check_frames(run_core, list(random_frames(np.random.default_rng(33), FRAMES_OF, FRAMES)))


def test_random_instructions_ask_for_the_same_seeds(run_core: RunCore) -> None:
    random = np.random.default_rng(34)
    made = [made_train(random) for _ in range(200)]
    results = run_core([["instruction", one.encode().hex(), 2**32 - 2] for one in made])
    for one, result in zip(made, results, strict=True):
        token = hashlib.sha256(one.encode()).digest()[:8].hex()
        assert result == {"token": token, "seeds": hexadecimal(one.seeds(2**32 - 2).ravel())}


def random_entry(random: np.random.Generator, size: int) -> tuple[Entry, dict[str, Any]]:
    """A random entry, and the same entry in the core's format."""
    way = random.random()
    if way < 0.15:
        bits = int(random.integers(1, 63))
        return Shrink(bits), {"shrink": bits}
    if way < 0.3:
        values = random.integers(-(2**61), 2**61, size=int(random.integers(1, 4)))
        first = int(random.integers(size + 1))
        return DenseValues(first, values), {"first": first, "values": decimal(values)}
    count = int(random.integers(1, 9))
    seeds = random.integers(2 ** int(random.choice([2, 64])), size=count, dtype=np.uint64)
    limit = 2 ** int(random.choice([3, 20, 31]))
    coefficients = random.integers(-limit, limit, size=count, dtype=np.int32)
    shift = int(random.integers(11))
    given = {"seeds": hexadecimal(seeds), "shift": shift, "coefficients": coefficients.tolist()}
    return (seeds, CoefficientBlock(shift, coefficients)), given


def test_random_replays_have_the_same_bits(run_core: RunCore) -> None:
    random = np.random.default_rng(35)
    asked, expected = [], []
    for number in range(REPLAYS):
        distribution = DISTRIBUTIONS[number % 3]
        size = int(random.integers(1, 40)) if number % 400 else 9000
        bound = 2 ** int(random.integers(1, 62))
        start = random.integers(-bound, bound, size=size)
        entries = [random_entry(random, size) for _ in range(int(random.integers(5)))]
        given = [one for _, one in entries]
        asked.append(["replay", decimal(start), given, distribution])
        try:
            after = replay(start, [entry for entry, _ in entries], distribution)
        except ReplayError:
            expected.append("ReplayError")
            continue
        weights = to_float32(after).astype("<f4").tobytes().hex()
        head = decimal(after[:64])
        expected.append({"sha256": sha256(after.tobytes()), "weights": weights, "head": head})
    assert run_core(asked) == expected
    assert 0 < expected.count("ReplayError") < REPLAYS / 2


def test_profiled_losses_are_pythons(run_core: RunCore) -> None:
    random = np.random.default_rng(37)
    cases, expected = [], []
    for width in (2, 3, 6, 40):
        for rows, scale in ((1, 1.0), (5, 30.0), (64, 1000.0), (200, 0.1)):
            scores = (random.normal(0, scale, (1, rows, width))).astype(np.float32)
            labels = random.integers(1 if scale == 30.0 else width, size=rows)
            cases.append(["profiledLoss", scores.ravel().tolist(), labels.tolist(), width])
            expected.append(profiled_cross_entropy(scores, labels)[0])
    np.testing.assert_allclose(run_core(cases), expected, rtol=1e-9, atol=1e-12)


def test_coefficients_are_rounded_alike(run_core: RunCore) -> None:
    random = np.random.default_rng(36)
    halves = np.array([0.5, 1.5, -0.5, -2.5, 2**31 - 1.5]) * 2.0**-40
    cases = [halves, np.array([1024.0, -3.0, 1e-9]), np.zeros(2), np.zeros(0)]
    cases += [random.normal(0, 10.0 ** int(random.integers(-12, 3)), 4) for _ in range(200)]
    cases = [case for case in cases if np.all(np.abs(case) <= 1024)]
    results = run_core([["quantize", case.tolist()] for case in cases])
    for case, result in zip(cases, results, strict=True):
        assert result == [
            {"shift": block.shift, "coefficients": block.coefficients.tolist()}
            for block in quantize(case)
        ]
    assert run_core([["quantize", [1024.5]], ["quantize", [None, 0.5]]])[0] == "ReplayError"


def test_weights_are_rounded_once(run_core: RunCore) -> None:
    """Some values would be wrong in float32 if they were first rounded to 53 bits."""
    ties = [2**60 + 2**36 + 1, 2**60 + 2**36, -(2**60) - 2**36 - 1, 2**61 + 2**37 - 1, 5, -5]
    state = np.array(ties, np.int64)
    (result,) = run_core([["replay", decimal(state), [], "gaussian"]])
    assert result["weights"] == to_float32(state).astype("<f4").tobytes().hex()
    assert struct.unpack("<f", bytes.fromhex(result["weights"][:8]))[0] > 2.0**9


def test_long_directions_continue_over_blocks(run_core: RunCore) -> None:
    asked, expected = [], []
    for distribution in DISTRIBUTIONS:
        z = directions(np.array([2**63 + 5], np.uint64), 100_001, distribution)[0]
        asked.append(["direction", f"{2**63 + 5:016x}", 100_001, distribution])
        expected.append({"sha256": sha256(z.tobytes()), "head": z[:64].tolist()})
    assert run_core(asked) == expected
