"""The files whose code runs in one round."""

from pathlib import Path

from benchmarks import round_trace

MOST_FILES, MOST_LINES = 45, 900


def test_a_round_goes_through_few_files_and_the_page_names_them() -> None:
    files = round_trace.trace()
    page = round_trace.PAGE.read_text(encoding="utf-8")
    assert round_trace.table(files) in page, "run python -m benchmarks.round_trace --write"
    assert len(files) <= MOST_FILES
    for file, names in files.items():
        assert len((round_trace.ROOT / file).read_text(encoding="utf-8").splitlines()) <= MOST_LINES
        assert not round_trace.forwarders(file, names)


def test_a_function_that_only_passes_its_arguments_on_is_found(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        "def passes(a, b):\n    return work(a, b)\n\n"
        "def swaps(a, b):\n    return work(b, a)\n\n"
        "def adds(a):\n    return work(a, 1)\n\n"
        "def is_not_called(a):\n    return work(a)\n"
    )
    assert round_trace.forwarders(file, ["passes", "swaps", "Some.adds"]) == ["passes"]
