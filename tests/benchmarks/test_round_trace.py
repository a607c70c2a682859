"""The files that one round goes through."""

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


def test_a_function_that_only_passes_its_arguments_on_is_found() -> None:
    file = round_trace.ROOT / "shared" / "wire.py"
    assert not round_trace.forwarders(file, ["pack"])
