"""Federations that refuse a message, a client or a setting: the other clients continue."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Settings, Tampering, config_of, grid_of
from flwr.app import Message, MessageType

from samara.server.app import serve
from samara.server.live.server_log import write_server_log
from samara.server.live.status import read_status
from samara.server.store import replay_run
from samara.shared.errors import DataError, RefusalCode, SamaraError, TrainingError
from samara.shared.protocol.frames.evaluation import Evaluation, EvaluationColumn
from samara.shared.protocol.frames.instructions import TrainInstruction
from samara.shared.protocol.frames.refusal import describe_servers_refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.results.result import read_result
from samara.simulations.simulate import simulate


def test_a_bad_report_is_dropped_alone(settings: Settings) -> None:
    config = config_of(settings)
    grid = grid_of(config, Tampering)

    def tamper(reply: Message) -> Message:
        record = reply.content.config_records["samara"]
        if reply.metadata.message_type == MessageType.TRAIN and reply.metadata.src_node_id == 1001:
            record["frame"] = bytes(record["frame"])[:-1]  # type: ignore[arg-type]
        return reply

    grid.tamper = tamper  # type: ignore[attr-defined]
    folder = serve(config, grid)
    for record in read_ledger(folder / "ledger"):
        assert [c.client for c in record.delta.contributors] == [0, 2]
    refused = read_result(folder)["rounds"][0]["refused"]
    assert list(refused) == ["1"]
    assert "checksum" in refused["1"]


def test_a_report_in_another_devices_name_is_dropped(settings: Settings) -> None:
    config = config_of(settings, rounds=1)
    grid = grid_of(config, Tampering)

    def tamper(reply: Message) -> Message:
        if reply.metadata.message_type == MessageType.TRAIN and reply.metadata.src_node_id == 1002:
            record = reply.content.config_records["samara"]
            report = Report.decode(bytes(record["frame"]))  # type: ignore[arg-type]
            forged = Report(report.token, 0, 9999, report.mean_loss, report.gradients)
            record["frame"] = forged.encode()
        return reply

    grid.tamper = tamper  # type: ignore[attr-defined]
    folder = serve(config, grid)
    (first, *_) = read_ledger(folder / "ledger")
    assert [c.client for c in first.delta.contributors] == [0, 1]


def test_an_evaluation_of_other_labels_is_dropped(settings: Settings) -> None:
    config = config_of(settings, rounds=1)
    grid = grid_of(config, Tampering)

    def tamper(reply: Message) -> Message:
        kind, node = reply.metadata.message_type, reply.metadata.src_node_id
        if kind == MessageType.EVALUATE and node == 1000:
            record = reply.content.config_records["samara"]
            evaluation = Evaluation.decode(bytes(record["frame"]))  # type: ignore[arg-type]
            columns = (EvaluationColumn("global", 0.1, np.ones((5, 5), np.int64)),)
            record["frame"] = replace(evaluation, columns=columns).encode()
        return reply

    grid.tamper = tamper  # type: ignore[attr-defined]
    final = read_result(serve(config, grid))["evaluations"][-1]
    assert set(final["columns"]["global"]["clients"]) == {"1", "2"}
    assert list(final["refused"]) == ["0"]


def test_a_client_counts_in_the_columns_that_it_has(settings: Settings) -> None:
    """Most clients are phones without a personal model; one client invents columns."""
    config = config_of(settings, rounds=1, personal__rounds=1)
    grid = grid_of(config, Tampering)

    def tamper(reply: Message) -> Message:
        node = reply.metadata.src_node_id
        if reply.metadata.message_type.startswith(MessageType.EVALUATE):
            record = reply.content.config_records["samara"]
            evaluation = Evaluation.decode(bytes(record["frame"]))  # type: ignore[arg-type]
            columns = evaluation.columns
            if node == 1000:
                columns += (replace(columns[0], name="best"), replace(columns[0], name="intercept"))
            elif node == 1001 and len(columns) > 1:
                columns = tuple(column for column in columns if column.name == "global")
            elif node == 1001:  # in the validation of personal models too
                columns = (replace(columns[0], name="global"),)
            elif columns[0].name == "personalized":
                columns = (replace(columns[0], counts=columns[0].counts + 1),)
            record["frame"] = replace(evaluation, columns=columns).encode()
        return reply

    grid.tamper = tamper  # type: ignore[attr-defined]
    *_, validation, test = read_result(serve(config, grid))["evaluations"]
    assert set(validation["columns"]) == {"personalized"}
    assert set(validation["columns"]["personalized"]["clients"]) == {"0"}
    assert (
        validation["refused"]["1"]
        == "the evaluation has none of the requested columns: personalized"
    )
    assert "the evaluation counts" in validation["refused"]["2"]
    assert test["refused"] == {}
    assert not {"best", "intercept"} & set(test["columns"])
    clients = {name: set(column["clients"]) for name, column in test["columns"].items()}
    assert clients.pop("global") == {"0", "1", "2"}
    assert "personalized" in clients
    assert all(others == {"0", "2"} for others in clients.values())


def test_a_device_with_another_adapter_is_refused_and_both_sides_say_why(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(settings)
    grid = grid_of(config)
    grid._contexts[1002].run_config = config_of(settings, adapter__rank=2).flat()
    with write_server_log(Path(config.out)):
        folder = serve(config, grid)
    assert set(read_result(folder)["clients"]) == {"0", "1"}
    told = describe_servers_refusal(RefusalCode.LAYOUT)
    said = [(r.name, r.getMessage()) for r in caplog.records if "refuse" in r.getMessage()]
    assert [name for name, _ in said] == ["samara.server", "samara.client"], "each says it once"
    assert said[0][1].startswith("refused: client 2: its layout ")
    assert said[1][1] == told
    client = read_status(folder).clients[2]
    assert (client.state, client.failures) == ("refused", 1)
    assert client.last_failure == said[0][1]


def test_a_client_refuses_an_instruction_for_another_layout(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(settings, rounds=1)
    grid = grid_of(config)
    plain = grid._deliver

    def with_another_layout(message: Message) -> Message:
        if message.metadata.dst_node_id == 1001 and message.metadata.message_type == "train":
            record = message.content.config_records["samara"]
            instruction = TrainInstruction.decode(bytes(record["frame"]))  # type: ignore[arg-type]
            record["frame"] = replace(instruction, layout_hash=bytes(32)).encode()
        return plain(message)

    grid._deliver = with_another_layout  # type: ignore[method-assign]
    (only,) = read_result(serve(config, grid))["rounds"]
    assert list(only["refused"]) == ["1"]
    assert "is not the run's 00000000 (code 9)" in only["refused"]["1"]
    assert "client 1 refuses: the instruction is for layout 000000000000" in caplog.text


def test_a_node_without_a_place_in_the_partition_is_refused(settings: Settings) -> None:
    config = config_of(settings, rounds=1, cohort__available=3)
    grid = grid_of(config)
    del grid._contexts[1002].node_config["num-partitions"]
    folder = serve(config, grid)
    assert set(read_result(folder)["clients"]) == {"0", "1"}


def test_a_device_whose_data_are_dealt_among_others_is_refused(settings: Settings) -> None:
    config = config_of(settings, rounds=1)
    grid = grid_of(config)
    grid._contexts[1002].node_config["num-partitions"] = 4
    assert set(read_result(serve(config, grid))["clients"]) == {"0", "1"}


def test_losses_that_are_not_finite_end_the_run_with_a_message(
    settings: Settings,
    model_folder: Callable[[str], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from safetensors.numpy import load_file, save_file

    broken = tmp_path / "broken"
    broken.mkdir()
    for file in model_folder("causal").iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = load_file(broken / "model.safetensors")
    # Each text has one of these words, and the check of a loaded model has other tokens.
    vocabulary = json.loads((broken / "tokenizer.json").read_text())["model"]["vocab"]
    name = next(name for name in weights if name.endswith("embed_tokens.weight"))
    weights[name] = weights[name].copy()
    weights[name][[vocabulary["not"], vocabulary["very"]]] = np.nan
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    config = config_of(settings, model__path=str(broken), rounds=2)
    message = (
        r"round 2: 2 rounds in a row had no usable report.*its local step 1 failed \(code 10\)"
    )
    with pytest.raises(TrainingError, match=message):
        simulate(config)
    assert "client 0 refuses: the loss is not finite at step 1 of round 1" in caplog.text
    assert [step.round for step in replay_run(Path(config.out))] == [0, 1, 2]
    assert not any(np.any(step.state) for step in replay_run(Path(config.out)))
    assert not (Path(config.out) / "result.json").exists()


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"model__path": "/nowhere/model"}, SamaraError, "no such model folder"),
        ({"data__path": "/nowhere/data.jsonl"}, DataError, "/nowhere/data.jsonl"),
        ({"data__clients": 200}, DataError, "no training example"),
        ({"data__partition": "user", "data__clients": 9}, DataError, "3"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    change: dict[str, Any], kind: type[SamaraError], message: str, settings: Settings
) -> None:
    config = config_of(settings, **change)
    with pytest.raises(kind, match=message):
        simulate(config)
    assert not Path(config.out).exists()


def test_unknown_labels_are_reported_by_file_and_line(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"text": "good", "label": 1}\n{"text": "odd", "label": "maybe"}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2.*maybe"):
        simulate(config_of(settings, data__path=str(file)))
