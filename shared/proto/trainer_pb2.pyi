from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HELLO: _ClassVar[TaskKind]
    TRAIN: _ClassVar[TaskKind]
    EVALUATE: _ClassVar[TaskKind]
    BLOB: _ClassVar[TaskKind]
HELLO: TaskKind
TRAIN: TaskKind
EVALUATE: TaskKind
BLOB: TaskKind

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

class BlobRequest(_message.Message):
    __slots__ = ("part", "settings")
    PART_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    part: bytes
    settings: str
    def __init__(self, part: _Optional[bytes] = ..., settings: _Optional[str] = ...) -> None: ...

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

class ToPhone(_message.Message):
    __slots__ = ("challenge", "task")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    challenge: Challenge
    task: Task
    def __init__(self, challenge: _Optional[_Union[Challenge, _Mapping]] = ..., task: _Optional[_Union[Task, _Mapping]] = ...) -> None: ...

class FromPhone(_message.Message):
    __slots__ = ("proof", "result")
    PROOF_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    proof: Proof
    result: TaskResult
    def __init__(self, proof: _Optional[_Union[Proof, _Mapping]] = ..., result: _Optional[_Union[TaskResult, _Mapping]] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("version", "nonce")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    version: int
    nonce: bytes
    def __init__(self, version: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("public_key", "signature")
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    public_key: bytes
    signature: bytes
    def __init__(self, public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("number", "kind", "instruction", "snapshot", "tail", "seconds")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    kind: TaskKind
    instruction: bytes
    snapshot: bytes
    tail: bytes
    seconds: float
    def __init__(self, number: _Optional[int] = ..., kind: _Optional[_Union[TaskKind, str]] = ..., instruction: _Optional[bytes] = ..., snapshot: _Optional[bytes] = ..., tail: _Optional[bytes] = ..., seconds: _Optional[float] = ...) -> None: ...

class TaskResult(_message.Message):
    __slots__ = ("number", "frame", "signature")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    number: int
    frame: bytes
    signature: bytes
    def __init__(self, number: _Optional[int] = ..., frame: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
