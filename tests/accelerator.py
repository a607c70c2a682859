"""A pretended machine with GPUs, on which torch code for CUDA runs.

Tensors of a pretended GPU are CPU tensors whose storage has a tag. Torch's CPU kernels compute with
them. Copies between host and GPU are real copies. An operation on tensors of two devices raises an
error, as on a real GPU. A kernel runs at once, but it counts as finished only for streams and
threads that have waited for it. Every stream therefore has a vector clock, and events carry clocks.
An access to memory that another stream may still read or write raises `MissingWaitError`, even if
the timing of a real GPU would hide the mistake. Newly allocated memory counts as just written in
its stream: torch's allocator reuses freed memory at once, so earlier kernels of that stream may
still use it.

Three things need a real GPU: the bits of its kernels, page-locked memory itself, and speed.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import MethodWrapperType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

CPU = torch.device("cpu")
FREE_BYTES = 2**30
_aten = torch.ops.aten
_WAITING = {
    _aten._local_scalar_dense.default,
    _aten.equal.default,
    _aten.is_nonzero.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
}
"""Operations that return when the stream has finished, because the host needs their result."""


class MissingWaitError(RuntimeError):
    """Memory was used while another stream may still use it."""


class Stream:
    """A stream of a pretended GPU, as `torch.cuda.Stream`.

    Attributes:
        device: torch device that it belongs to.
        known: for each stream, the number of its operations that end before the next operation of
            this stream begins.
    """

    machine: "Machine"

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = self.machine.place("cuda" if device is None else device)
        self.known: dict[Stream, int] = {self: 0}
        self.machine.streams.append(self)

    def wait_event(self, event: "Event") -> None:
        """Have later operations wait for an event."""
        _merge(self.known, event.known)

    def wait_stream(self, stream: "Stream") -> None:
        """Have later operations wait for all operations of another stream so far."""
        _merge(self.known, stream.known)

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Record an event after all operations so far."""
        event = event or self.machine.Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Wait for all operations so far."""
        _merge(self.machine.completed, self.known)


class Event:
    """An event of a pretended GPU, as `torch.cuda.Event`."""

    machine: "Machine"

    def __init__(self, **settings: Any) -> None:
        self.known: dict[Stream, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        """Record the event after all operations of a stream so far."""
        self.known = dict((stream or self.machine.current_stream()).known)

    def wait(self, stream: Stream | None = None) -> None:
        """Have a stream's later operations wait."""
        (stream or self.machine.current_stream()).wait_event(self)

    def synchronize(self) -> None:
        """Wait for the operations before the event."""
        _merge(self.machine.completed, self.known)


@dataclass(eq=False)
class _Memory:
    """The tag of a storage: a GPU's memory, or page-locked memory of the host.

    Attributes:
        device: device that it is on.
        owner: stream that it was allocated in; None on the host.
        write: last stream that wrote it, and the number of its operation.
        reads: number of the last operation of each stream that has read it since.
    """

    device: torch.device
    owner: Stream | None = None
    write: tuple[Stream, int] | None = None
    reads: dict[Stream, int] = field(default_factory=dict)

    def uses(self) -> list[tuple[Stream, int]]:
        """Return the accesses that a write must wait for."""
        return [*([self.write] if self.write else []), *self.reads.items()]


class _ThreadState(threading.local):
    """The state of one thread.

    Attributes:
        device: index of the current device.
        streams: current streams by device, where they are not the default ones.
        inside: device of the tensors that an operation creates inside a function of torch.
        target: destination of the tensor that is being moved, and whether nobody waits for the
            move.
    """

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[torch.device, Stream] = {}
        self.inside: torch.device | None = None
        self.target: tuple[torch.device, bool] | None = None


class Machine:
    """Pretended GPUs, with their streams, waits and memory.

    Args:
        devices: number of GPUs.

    Attributes:
        streams: all streams.
        completed: number of each stream's operations that the host has waited for.
        faults: messages about accesses without a wait, and about memory that was freed too early.
        launches: names of the operations that ran, by device.
        copied: bytes of each copy between the host and a GPU, in their order.
        bytes: bytes of the tensors on each device.
        peak: largest number of bytes on each device at one time.
    """

    def __init__(self, devices: int = 2) -> None:
        self.count = devices
        self.streams: list[Stream] = []
        self.completed: dict[Stream, int] = {}
        self.faults: list[str] = []
        self._lock = threading.RLock()
        self._state = _ThreadState()
        self.Stream = type("Stream", (Stream,), {"machine": self})
        self.Event = type("Event", (Event,), {"machine": self})
        places = [torch.device("cuda", index) for index in range(devices)]
        self._default: dict[torch.device, Stream] = {}
        self._default = {place: self.Stream(place) for place in places}
        self.launches: dict[torch.device, list[str]] = {place: [] for place in places}
        self.copied: list[int] = []
        self.bytes, self.peak = dict.fromkeys(places, 0), dict.fromkeys(places, 0)

    def place(self, device: Any) -> torch.device:
        """Return a device with its index.

        Raises:
            RuntimeError: if this machine does not have it.
        """
        place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if place.type != "cuda":
            return place
        if place.index is None:
            return torch.device("cuda", self._state.device)
        if place.index >= self.count:
            raise RuntimeError("CUDA error: invalid device ordinal")
        return place

    def device_of(self, tensor: Tensor) -> torch.device:
        """Return the pretended device of a tensor."""
        for part in _parts(tensor):
            memory = _memory_of(part)
            return part.device if memory is None else memory.device
        return tensor.device

    @contextmanager
    def modes(self) -> Iterator[None]:
        """Pretend in this thread that there are GPUs, inside the context."""
        with _Kernels(self), _Functions(self):
            yield

    # What torch.cuda has.

    def current_device(self) -> int:
        return self._state.device

    def exchange_device(self, index: int) -> int:
        before = self._state.device
        if index >= 0:
            self._state.device = self.place(index).index
        return before

    def set_device(self, device: Any) -> None:
        self._state.device = self.place(device).index

    def current_stream(self, device: Any = None) -> Stream:
        place = self.place("cuda" if device is None else device)
        return self._state.streams.get(place) or self._default[place]

    def default_stream(self, device: Any = None) -> Stream:
        return self._default[self.place("cuda" if device is None else device)]

    @contextmanager
    def stream(self, stream: Stream | None) -> Iterator[None]:
        if stream is None:
            yield
            return
        state = self._state
        before = state.device, dict(state.streams)
        state.device, state.streams[stream.device] = stream.device.index, stream
        try:
            yield
        finally:
            state.device, state.streams = before

    def synchronize(self, device: Any = None) -> None:
        place = self.place("cuda" if device is None else device)
        for stream in self.streams:
            if stream.device == place:
                stream.synchronize()

    # What operations do.

    def launch(
        self, name: str, device: torch.device, reads: Iterable[Tensor], writes: Iterable[Tensor]
    ) -> Stream:
        """Give the device's current stream an operation, and return the stream.

        Raises:
            MissingWaitError: if another stream may still use the operation's memory.
        """
        stream = self.current_stream(device)
        with self._lock:
            self.launches[device].append(name)
            stream.known[stream] += 1
            for tensor in reads:
                if (memory := _memory_of(tensor)) is not None:
                    if memory.write:
                        self._check(name, tensor, stream.known, [memory.write])
                    memory.reads[stream] = stream.known[stream]
            for tensor in writes:
                if (memory := _memory_of(tensor)) is not None:
                    self._check(name, tensor, stream.known, memory.uses())
                    memory.write, memory.reads = (stream, stream.known[stream]), {}
        return stream

    def access_from_host(self, name: str, tensor: Tensor, writes: bool) -> None:
        """Check that the host may use its own memory.

        Raises:
            MissingWaitError: if a stream may still use it.
        """
        if (memory := _memory_of(tensor)) is not None:
            written = [memory.write] if memory.write else []
            with self._lock:
                self._check(name, tensor, {}, memory.uses() if writes else written)

    def copy(self, name: str, source: Tensor, target: Tensor, non_blocking: bool) -> None:
        """Check and record the accesses of a copy between two tensors, which the caller makes."""
        origin, place = self.device_of(source), self.device_of(target)
        if origin == place == CPU:
            self.access_from_host(name, source, writes=False)
            self.access_from_host(name, target, writes=True)
            return
        if "cuda" == origin.type == place.type:
            there = self.current_stream(place)
            self.current_stream(origin).wait_stream(there)
            there.wait_stream(self.launch(name, origin, [source], [target]))
            return
        host = source if origin == CPU else target
        self.copied.append(source.nbytes)
        if _memory_of(host) is None or not non_blocking:
            # Pageable memory is read, or has been written, when the call returns.
            self.access_from_host(name, host, writes=host is target)
        stream = self.launch(name, place if origin == CPU else origin, [source], [target])
        if not non_blocking or (_memory_of(host) is None and host is target):
            stream.synchronize()

    def tag(self, tensor: Tensor, device: torch.device) -> None:
        """Tag new CPU memory as just allocated on a device; with a CPU device, as page-locked."""
        for part in _parts(tensor):
            storage = part.untyped_storage()
            memory = _Memory(device)
            if device.type == "cuda":
                owner = memory.owner = self.current_stream(device)
                size = storage.nbytes()
                with self._lock:
                    owner.known[owner] += 1
                    memory.write = owner, owner.known[owner]
                    self.bytes[device] += size
                    self.peak[device] = max(self.peak[device], self.bytes[device])
                weakref.finalize(storage, self._free, memory, size)
            storage.__dict__["pretended"] = memory

    def _free(self, memory: _Memory, size: int) -> None:
        """Add a fault if a stream may still use memory that is being freed."""
        with self._lock:
            self.bytes[memory.device] -= size
            for stream, number in memory.uses():
                known = {} if memory.owner is None else memory.owner.known
                if not self._has_ended(stream, number, known):
                    self.faults.append(f"memory was freed while {_name(stream)} may still use it")

    def _check(
        self, name: str, tensor: Tensor, known: dict[Stream, int], uses: list[tuple[Stream, int]]
    ) -> None:
        for stream, number in uses:
            if not self._has_ended(stream, number, known):
                fault = f"{name} of {list(tensor.shape)} while {_name(stream)} may still use it"
                self.faults.append(fault)
                raise MissingWaitError(fault)

    def _has_ended(self, stream: Stream, number: int, known: dict[Stream, int]) -> bool:
        return number <= max(known.get(stream, 0), self.completed.get(stream, 0))


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which every operation of torch's dispatcher is ordered and checked."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._machine = machine

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        machine, kwargs = self._machine, kwargs or {}
        signature = _signature(func)
        if signature.is_composite:  # in inference mode nothing has taken it apart before
            with self:
                return func.decompose(*args, **kwargs)
        state, name = machine._state, signature.name
        inputs, written, placed = _inputs(func, args, kwargs)
        if any(tensor.is_meta for tensor in inputs):
            return func(*args, **kwargs)
        if func is _aten._to_copy.default and state.target is not None:
            return self._send(func, inputs[0], kwargs, *state.target)
        if func is _aten.copy_.default:
            target, source, *rest = args
            machine.copy(name, source, target, kwargs.get("non_blocking", any(rest)))
            return func(*args, **kwargs)
        device = self._device(func, placed)
        reads = [] if signature.makes_view else [p for tensor in inputs for p in _parts(tensor)]
        writes = [part for tensor in written for part in _parts(tensor)]
        if device.type == "cuda":
            stream = machine.launch(name, device, reads, writes)
            if func in _WAITING:
                stream.synchronize()
        else:
            for tensor in reads:
                machine.access_from_host(name, tensor, writes=False)
            for tensor in writes:
                machine.access_from_host(name, tensor, writes=True)
            if not inputs and state.inside is not None:
                device = state.inside
        output = func(*args, **kwargs)
        if device.type == "cuda":
            _tag_made(machine, output, inputs, device)
        return output

    def _send(
        self, func: Any, source: Tensor, kwargs: Any, device: torch.device, non_blocking: bool
    ) -> Tensor:
        """Copy a tensor to another device."""
        copy: Tensor = func(source, **kwargs)
        if device.type == "cuda":
            self._machine.tag(copy, device)
        self._machine.copy(str(func), source, copy, non_blocking)
        return copy

    def _device(self, func: Any, inputs: list[Tensor]) -> torch.device:
        """Return the device that an operation runs on.

        Raises:
            RuntimeError: if its tensors are on several devices.
        """
        found = {self._machine.device_of(t): None for t in inputs if t.dim()}
        if len(found) > 1:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {func} got "
                f"{' and '.join(map(str, found))}"
            )
        scalars = {self._machine.device_of(tensor) for tensor in inputs}
        return next((d for d in (*found, *scalars) if d.type == "cuda"), CPU)


class _Functions(TorchFunctionMode):
    """A context in which torch's functions accept pretended devices, and tensors report theirs."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        of = machine.device_of
        self._own: dict[Any, Callable[..., Any]] = {
            torch.Tensor.device.__get__: of,  # type: ignore[attr-defined]
            torch.Tensor.is_cuda.__get__: lambda t: of(t).type == "cuda",  # type: ignore[attr-defined]
            torch.Tensor.is_cpu.__get__: lambda t: of(t).type == "cpu",  # type: ignore[attr-defined]
            torch.Tensor.get_device: lambda t: -1 if of(t).index is None else of(t).index,
            torch.Tensor.to: self._to,
            torch.Tensor.cpu: lambda t, **kwargs: self._to(t, CPU),
            torch.Tensor.cuda: lambda t, device=None, non_blocking=False: self._to(
                t, machine.place("cuda" if device is None else device), non_blocking=non_blocking
            ),
            torch.Tensor.pin_memory: self._pin,
            torch.Tensor.is_pinned: lambda t: of(t) == CPU and _memory_of(t) is not None,
            torch.Tensor.numpy: self._numpy,
            torch.Tensor.tolist: lambda t: self._numpy(self._to(t, CPU)).tolist(),
            torch.as_tensor: self._as_tensor,
            torch.asarray: self._as_tensor,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        own = self._own.get(func)
        if own is not None:
            return own(*args, **(kwargs or {}))
        if type(func) is MethodWrapperType:  # an attribute of a tensor
            return func(*args)
        return self._call(func, args, kwargs or {})

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch; tensors that it creates are on the device of its inputs."""
        machine, state = self._machine, self._machine._state
        kwargs = dict(kwargs)
        pinned = bool(kwargs.pop("pin_memory", False))
        inputs = _tensors((args, kwargs))
        given = kwargs.get("device")
        if given is not None:
            place = machine.place(given)
            kwargs["device"] = CPU if place.type == "cuda" else place
        else:
            place = next((d for t in inputs if (d := machine.device_of(t)).type == "cuda"), CPU)
        before, state.inside = state.inside, place if place.type == "cuda" else None
        try:
            output = func(*args, **kwargs)
        finally:
            state.inside = before
        if given is not None and place == CPU:
            for tensor in _made(output, inputs):
                tensor.untyped_storage().__dict__.pop("pretended", None)
        elif place.type == "cuda":
            _tag_made(machine, output, inputs, place)
        if pinned:
            machine.tag(output, CPU)
        return output

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        state = self._machine._state
        copies = bool(kwargs.pop("copy", False))
        if args and isinstance(args[0], Tensor):
            place, dtype, non_blocking = self._machine.device_of(args[0]), args[0].dtype, False
            layout = None
        else:
            given, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
            place = None if given is None else self._machine.place(given)
        how: dict[str, Any] = {"dtype": dtype or tensor.dtype}
        if layout is not None:
            how["memory_format"] = layout
        if place is None or place == self._machine.device_of(tensor):
            same: Tensor = self._call(torch.Tensor.to, (tensor,), how | {"copy": copies})
            return same
        if "meta" in (place.type, tensor.device.type):
            return tensor.to(place if place.type == "meta" else CPU, **how)
        before, state.target = state.target, (place, non_blocking)
        try:
            return tensor.to(copy=True, **how)
        finally:
            state.target = before

    def _pin(self, tensor: Tensor, device: Any = None) -> Tensor:
        if self._machine.device_of(tensor) != CPU:
            raise RuntimeError("cannot pin 'torch.cuda.FloatTensor', only CPU memory can be pinned")
        copy = tensor.clone()
        self._machine.tag(copy, CPU)
        return copy

    def _numpy(self, tensor: Tensor, **kwargs: Any) -> Any:
        if self._machine.device_of(tensor).type == "cuda":
            raise TypeError(
                f"can't convert {self._machine.device_of(tensor)} device type tensor to numpy. Use "
                "Tensor.cpu() to copy the tensor to host memory first."
            )
        self._machine.access_from_host("numpy", tensor, writes=True)
        return tensor.numpy(**kwargs)

    def _as_tensor(self, data: Any, **kwargs: Any) -> Tensor:
        device = kwargs.pop("device", None)
        with self:
            tensor = data if isinstance(data, Tensor) else torch.tensor(data, **kwargs)
            return tensor if device is None else tensor.to(device)


class _Generator(torch.Generator):
    """A generator of a pretended GPU, which draws the CPU's numbers."""

    def __new__(cls, device: Any = "cpu") -> "_Generator":
        return super().__new__(cls, "cpu")


@contextmanager
def pretended_gpus(count: int = 2) -> Iterator[Machine]:
    """Pretend inside the context, and in threads that begin there, that there are GPUs.

    Yields:
        The machine; a test that makes a mistake on purpose clears its `faults`.

    Raises:
        AssertionError: if there are faults at the end.
    """
    with pytest.MonkeyPatch.context() as patch:
        grids = _import_what_asks_for_gpus()
        machine = Machine(count)
        for name, value in {
            "is_available": lambda: True,
            "device_count": lambda: count,
            "_lazy_init": lambda: None,
            "current_device": machine.current_device,
            "set_device": machine.set_device,
            "_exchange_device": machine.exchange_device,
            "_maybe_exchange_device": machine.exchange_device,
            "Stream": machine.Stream,
            "Event": machine.Event,
            "stream": machine.stream,
            "current_stream": machine.current_stream,
            "default_stream": machine.default_stream,
            "synchronize": machine.synchronize,
            "empty_cache": lambda: None,
            "mem_get_info": lambda device=None: (FREE_BYTES, FREE_BYTES),
            "memory_allocated": lambda device=None: machine.bytes[_index(machine, device)],
            "max_memory_allocated": lambda device=None: machine.peak[_index(machine, device)],
            "reset_peak_memory_stats": lambda device=None: machine.peak.update(machine.bytes),
            "get_device_name": lambda device=None: "a pretended GPU",
            "get_device_capability": lambda device=None: (8, 7),
        }.items():
            patch.setattr(torch.cuda, name, value)
        run, launch = threading.Thread.run, grids.__call__
        run_backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

        def pretending(thread: threading.Thread) -> None:
            with machine.modes():
                run(thread)

        def going_back(*args: Any, **kwargs: Any) -> Any:
            with _Functions(machine):  # for hooks, and for what is computed again
                return run_backward(*args, **kwargs)

        def launching(grid: Any, *args: Any, **kwargs: Any) -> None:
            _launch_triton(machine, partial(launch, grid), grid.fn.__name__, args, kwargs)

        patch.setattr(torch, "Generator", _Generator)
        patch.setattr(threading.Thread, "run", pretending)
        # What is kept for a second run is looked at inside operations, which pretend nothing.
        patch.setitem(
            checkpoint._allowed_determinism_checks_to_fns,
            "default",
            lambda tensor: (tensor.shape, tensor.dtype, machine.device_of(tensor)),
        )
        patch.setattr(torch.autograd, "_engine_run_backward", going_back)
        patch.setattr(grids, "__call__", launching)
        with machine.modes():
            yield machine
    assert not machine.faults, machine.faults


def _import_what_asks_for_gpus() -> Any:
    """Import the libraries that look for CUDA during their import; return Triton's launcher."""
    import bitsandbytes  # noqa: F401
    import transformers.modeling_utils  # noqa: F401
    from triton.runtime import interpreter

    return interpreter.GridExecutor


def _launch_triton(
    machine: Machine,
    launch: Callable[..., None],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Launch a kernel of Triton as Triton does: on the current device, in its current stream."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    here = torch.device("cuda", machine.current_device())
    for tensor in tensors:
        if (place := machine.device_of(tensor)) != here:
            raise ValueError(
                f"Pointer argument cannot be accessed from Triton: {name} runs on {here}, the "
                f"current device, and the tensor is on {place}"
            )
    machine.launch(name, here, tensors, tensors)
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        launch(*args, **kwargs)


def _index(machine: Machine, device: Any) -> torch.device:
    return machine.place("cuda" if device is None else device)


def _merge(known: dict[Stream, int], more: dict[Stream, int]) -> None:
    for stream, number in list(more.items()):
        known[stream] = max(known.get(stream, 0), number)


def _name(stream: Stream) -> str:
    return f"stream {stream.machine.streams.index(stream)} of {stream.device}"


def _parts(tensor: Tensor) -> list[Tensor]:
    """Return the dense tensors that a tensor consists of."""
    if tensor.layout is torch.sparse_csr:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return [tensor]


def _memory_of(tensor: Tensor) -> _Memory | None:
    memory: _Memory | None = tensor.untyped_storage().__dict__.get("pretended")
    return memory


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors in a value, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for each in value for tensor in _tensors(each)]
    return _tensors(list(value.values())) if isinstance(value, dict) else []


def _made(output: Any, inputs: list[Tensor]) -> list[Tensor]:
    """Return the dense tensors of an output whose memory is not that of an input."""
    parts = [part for tensor in _tensors(output) if not tensor.is_meta for part in _parts(tensor)]
    before = {p.untyped_storage()._cdata for tensor in inputs for p in _parts(tensor)}
    return [part for part in parts if part.untyped_storage()._cdata not in before]


def _tag_made(machine: Machine, output: Any, inputs: list[Tensor], device: torch.device) -> None:
    """Tag the new tensors in an output; other tensors already have a tag."""
    if any(_memory_of(part) is None for t in _tensors(output) for part in _parts(t)):
        for tensor in _made(output, inputs):
            if _memory_of(tensor) is None:
                machine.tag(tensor, device)


@dataclass(frozen=True)
class _Signature:
    """Facts about an operation of torch.

    Attributes:
        name: its name.
        is_composite: whether it consists of other operations.
        makes_view: whether it returns a view, and so touches no memory.
        arguments: name of each argument, and whether it is written.
    """

    name: str
    is_composite: bool
    makes_view: bool
    arguments: list[tuple[str, bool]]


@cache
def _signature(func: Any) -> _Signature:
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    aliases = [value.alias_info for value in func._schema.returns]
    return _Signature(
        str(func),
        bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)),
        any(alias is not None and not alias.is_write for alias in aliases),
        [
            (argument.name, argument.alias_info is not None and argument.alias_info.is_write)
            for argument in func._schema.arguments
        ],
    )


def _inputs(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return an operation's input tensors, the inputs that it writes, and the inputs on its device.

    A GPU's tensor may be indexed by tensors on the CPU.
    """
    inputs, written, placed = list[Tensor](), list[Tensor](), list[Tensor]()
    for position, (name, is_written) in enumerate(_signature(func).arguments):
        value = args[position] if position < len(args) else kwargs.get(name)
        tensors = _tensors(value)
        inputs += tensors
        if is_written:
            written += tensors
        if name != "indices" or isinstance(value, Tensor):
            placed += tensors
    return inputs, written, placed
