"""The generated code of the trainer's service is that of trainer.proto."""

import re

from helpers import ROOT

from samara.shared.proto.trainer_pb2 import DESCRIPTOR

PROTO = ROOT / "shared" / "proto" / "trainer.proto"


def test_the_generated_code_is_of_this_file() -> None:
    text = re.sub(r"//.*", "", PROTO.read_text())
    messages = {
        name: dict(re.findall(r"(\w+) = (\d+);", body))
        for name, body in re.findall(r"message (\w+) {(.*?)\n}", text, re.DOTALL)
    }
    generated = {
        name: {field.name: str(field.number) for field in message.fields}
        for name, message in DESCRIPTOR.message_types_by_name.items()
    }
    assert generated == messages
    services = DESCRIPTOR.services_by_name.values()
    calls = re.findall(r"rpc (\w+)\((?:stream )?(\w+)\) returns \((?:stream )?(\w+)\)", text)
    assert calls == [
        (method.name, method.input_type.name, method.output_type.name)
        for service in services
        for method in service.methods
    ]
