from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HELLO: _ClassVar[TaskKind]
    TRAIN: _ClassVar[TaskKind]
    EVALUATE: _ClassVar[TaskKind]
    BLOB: _ClassVar[TaskKind]
    REFUSED: _ClassVar[TaskKind]
    MASK: _ClassVar[TaskKind]
HELLO: TaskKind
TRAIN: TaskKind
EVALUATE: TaskKind
BLOB: TaskKind
REFUSED: TaskKind
MASK: TaskKind

class Reply(_message.Message):
    __slots__ = ("frame", "cost")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    frame: bytes
    cost: bytes
    def __init__(self, frame: _Optional[bytes] = ..., cost: _Optional[bytes] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("model_loads", "answered", "busy_seconds", "peak_memory_bytes", "paused")
    MODEL_LOADS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    model_loads: int
    answered: int
    busy_seconds: float
    peak_memory_bytes: int
    paused: str
    def __init__(self, model_loads: _Optional[int] = ..., answered: _Optional[int] = ..., busy_seconds: _Optional[float] = ..., peak_memory_bytes: _Optional[int] = ..., paused: _Optional[str] = ...) -> None: ...

class RunState(_message.Message):
    __slots__ = ("run", "round", "has_private_part")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HAS_PRIVATE_PART_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    has_private_part: bool
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., has_private_part: bool = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("state", "task", "kind", "fields", "labels", "generates", "base_model", "context")
    STATE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    GENERATES_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    state: RunState
    task: str
    kind: str
    fields: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.RepeatedScalarFieldContainer[str]
    generates: bool
    base_model: str
    context: int
    def __init__(self, state: _Optional[_Union[RunState, _Mapping]] = ..., task: _Optional[str] = ..., kind: _Optional[str] = ..., fields: _Optional[_Iterable[str]] = ..., labels: _Optional[_Iterable[str]] = ..., generates: bool = ..., base_model: _Optional[str] = ..., context: _Optional[int] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("text", "fields")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    fields: _containers.ScalarMap[str, str]
    def __init__(self, text: _Optional[str] = ..., fields: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ClassifyRequest(_message.Message):
    __slots__ = ("questions", "models", "run")
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    questions: _containers.RepeatedCompositeFieldContainer[Question]
    models: _containers.RepeatedScalarFieldContainer[str]
    run: str
    def __init__(self, questions: _Optional[_Iterable[_Union[Question, _Mapping]]] = ..., models: _Optional[_Iterable[str]] = ..., run: _Optional[str] = ...) -> None: ...

class Scores(_message.Message):
    __slots__ = ("model", "scores", "probabilities", "label")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    scores: _containers.RepeatedScalarFieldContainer[float]
    probabilities: _containers.RepeatedScalarFieldContainer[float]
    label: int
    def __init__(self, model: _Optional[str] = ..., scores: _Optional[_Iterable[float]] = ..., probabilities: _Optional[_Iterable[float]] = ..., label: _Optional[int] = ...) -> None: ...

class Classification(_message.Message):
    __slots__ = ("labels", "values", "scores")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedScalarFieldContainer[str]
    values: _containers.RepeatedScalarFieldContainer[str]
    scores: _containers.RepeatedCompositeFieldContainer[Scores]
    def __init__(self, labels: _Optional[_Iterable[str]] = ..., values: _Optional[_Iterable[str]] = ..., scores: _Optional[_Iterable[_Union[Scores, _Mapping]]] = ...) -> None: ...

class ClassifyReply(_message.Message):
    __slots__ = ("state", "classifications")
    STATE_FIELD_NUMBER: _ClassVar[int]
    CLASSIFICATIONS_FIELD_NUMBER: _ClassVar[int]
    state: RunState
    classifications: _containers.RepeatedCompositeFieldContainer[Classification]
    def __init__(self, state: _Optional[_Union[RunState, _Mapping]] = ..., classifications: _Optional[_Iterable[_Union[Classification, _Mapping]]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("prompt", "messages", "model", "run", "max_tokens", "temperature", "top_p", "seed", "stop")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    model: str
    run: str
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, prompt: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., model: _Optional[str] = ..., run: _Optional[str] = ..., max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ...) -> None: ...

class GenerateOpening(_message.Message):
    __slots__ = ("state", "prompt_tokens", "note")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    state: RunState
    prompt_tokens: int
    note: str
    def __init__(self, state: _Optional[_Union[RunState, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., note: _Optional[str] = ...) -> None: ...

class GenerateEnding(_message.Message):
    __slots__ = ("reason", "tokens")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    tokens: int
    def __init__(self, reason: _Optional[str] = ..., tokens: _Optional[int] = ...) -> None: ...

class GeneratePart(_message.Message):
    __slots__ = ("opening", "text", "ending")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    opening: GenerateOpening
    text: str
    ending: GenerateEnding
    def __init__(self, opening: _Optional[_Union[GenerateOpening, _Mapping]] = ..., text: _Optional[str] = ..., ending: _Optional[_Union[GenerateEnding, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("version", "nonce", "takes_boards")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TAKES_BOARDS_FIELD_NUMBER: _ClassVar[int]
    version: int
    nonce: bytes
    takes_boards: bool
    def __init__(self, version: _Optional[int] = ..., nonce: _Optional[bytes] = ..., takes_boards: bool = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("public_key", "signature", "is_board")
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    IS_BOARD_FIELD_NUMBER: _ClassVar[int]
    public_key: bytes
    signature: bytes
    is_board: bool
    def __init__(self, public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., is_board: bool = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("number", "kind", "instruction", "snapshot", "tail", "seconds", "settings", "personal", "shares")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PERSONAL_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    number: int
    kind: TaskKind
    instruction: bytes
    snapshot: bytes
    tail: bytes
    seconds: float
    settings: bytes
    personal: bool
    shares: bytes
    def __init__(self, number: _Optional[int] = ..., kind: _Optional[_Union[TaskKind, str]] = ..., instruction: _Optional[bytes] = ..., snapshot: _Optional[bytes] = ..., tail: _Optional[bytes] = ..., seconds: _Optional[float] = ..., settings: _Optional[bytes] = ..., personal: bool = ..., shares: _Optional[bytes] = ...) -> None: ...

class TaskResult(_message.Message):
    __slots__ = ("number", "frame", "signature")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    number: int
    frame: bytes
    signature: bytes
    def __init__(self, number: _Optional[int] = ..., frame: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
