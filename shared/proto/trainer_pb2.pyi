from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class CatchUpRequest(_message.Message):
    __slots__ = ("instruction", "settings", "snapshot", "tail")
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    instruction: bytes
    settings: str
    snapshot: bytes
    tail: bytes
    def __init__(self, instruction: _Optional[bytes] = ..., settings: _Optional[str] = ..., snapshot: _Optional[bytes] = ..., tail: _Optional[bytes] = ...) -> None: ...

class TrainRequest(_message.Message):
    __slots__ = ("instruction", "settings")
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    instruction: bytes
    settings: str
    def __init__(self, instruction: _Optional[bytes] = ..., settings: _Optional[str] = ...) -> None: ...

class EvaluateRequest(_message.Message):
    __slots__ = ("instruction", "settings", "personal")
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PERSONAL_FIELD_NUMBER: _ClassVar[int]
    instruction: bytes
    settings: str
    personal: bool
    def __init__(self, instruction: _Optional[bytes] = ..., settings: _Optional[str] = ..., personal: bool = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("frame",)
    FRAME_FIELD_NUMBER: _ClassVar[int]
    frame: bytes
    def __init__(self, frame: _Optional[bytes] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: str
    def __init__(self, settings: _Optional[str] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("hello", "model_loads", "answered", "busy_seconds", "peak_memory_bytes", "paused")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    MODEL_LOADS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    hello: bytes
    model_loads: int
    answered: int
    busy_seconds: float
    peak_memory_bytes: int
    paused: str
    def __init__(self, hello: _Optional[bytes] = ..., model_loads: _Optional[int] = ..., answered: _Optional[int] = ..., busy_seconds: _Optional[float] = ..., peak_memory_bytes: _Optional[int] = ..., paused: _Optional[str] = ...) -> None: ...
