"""Measurement of an informed basis, with the result in a file."""

from collections.abc import Iterator
from pathlib import Path

from samara.client.training.informed_basis import (
    LEAST_SHARE,
    PROBE_TEXTS,
    TEXTS,
    measure_basis,
    random_texts,
)
from samara.client.training.model_runtime import load_run
from samara.shared.errors import DataError, ModelError
from samara.shared.protocol.basis import FORMAT
from samara.shared.settings.config import RunConfig
from samara.shared.settings.features import check_features, kind_of
from samara.shared.storage.files import check_requested, write_requested
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.objectives import CROSS_ENTROPY

RANDOM_TOKENS = "random-tokens"


def write_basis(config: RunConfig, source: str, out: Path) -> Iterator[str]:
    """Measure a basis for a run's model, adapter and task, and write it; yield lines to print.

    Args:
        config: settings of the run; its data are not read.
        source: `RANDOM_TOKENS`, or a file with one text per line.
        out: path of the basis file.

    Raises:
        ModelError: if the basis captures too small a share of the gradients; no file is written.
        SamaraError: if model, task or texts cannot be used, or the file cannot be written.
    """
    check_requested(out, FORMAT.encode())
    task = load_task(config.task)
    adapter = {"basis": "informed", "adapter": config.features["adapter"]}
    check_features({"task": kind_of(task)} | adapter, f"task {task.name!r}")
    assert not isinstance(task, GenerationTask)
    inner = {"adapter.layers": config.adapter.inner_layers, "adapter.label-bias": False}
    inner["objective"] = CROSS_ENTROPY
    exact = config.with_values(inner | {"adapter.basis": "", "gradients": "exact"})
    runtime = load_run(exact, lambda clients: []).runtime
    count = (TEXTS + PROBE_TEXTS) * len(task.source_fields)
    if source == RANDOM_TOKENS:
        texts = random_texts(runtime, count)
    else:
        texts = _lines_of(Path(source), count)
    measured = measure_basis(runtime, task, texts, "file" if source != RANDOM_TOKENS else source)
    basis = measured.basis
    layout = runtime.layout
    share = basis.origin.share
    yield (
        f"{len(basis.scales)} of {layout.adapter_element_count:,} directions capture {share:.1%} "
        f"of the squared gradients on {PROBE_TEXTS} other texts; effective rank "
        f"{measured.effective_rank:.1f}"
    )
    if share < LEAST_SHARE:
        raise ModelError(
            f"the basis captures {share:.1%} of the squared gradients; below {LEAST_SHARE:.0%}, "
            "isotropic directions are better. No file was written; leave adapter.basis empty"
        )
    write_requested(out, basis.encoded, FORMAT.encode())
    yield f"{out}: {len(basis.encoded):,} bytes, sha256 {basis.reference.sha256}"
    yield f"use it with --set adapter.basis={out}"


def _lines_of(file: Path, count: int) -> list[str]:
    """Return the first non-empty lines of a file, at most `count`.

    Raises:
        DataError: if the file cannot be read, or has fewer than a tenth of `count` lines.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--from {file}: cannot be read as text: {error}") from error
    texts = [line.strip() for line in lines if line.strip()][:count]
    if len(texts) < count // 10:
        raise DataError(
            f"--from {file}: has {len(texts)} texts, but a basis needs at least {count // 10:,}; "
            "add texts"
        )
    return texts
