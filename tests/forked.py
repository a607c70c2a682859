"""Subprocesses of tests that start with the libraries loaded, instead of importing them.

A process that has only imported the libraries, a `zygote`, forks itself for every command that is a
module or a script of this environment. The fork has the command's arguments, environment, folder
and streams, and is a child of the requesting process. It has its own zygote, so that its
subprocesses start in the same way. Commands of Samara also begin with the modules of this checkout
loaded.

Some commands are started as usual: commands that read their environment before `main`, commands
with interpreter options or with the code of another checkout, and `-c` programs that do not begin
with `LOADED`. A shell forks its commands if it uses the words of `command_server` in place of
Python. The workers of pytest-xdist are forked too, each with its own zygote.
"""

import atexit
import ctypes
import gc
import importlib
import json
import logging
import os
import re
import runpy
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

from execnet.gateway_io import popen_bootstrapline
from fsync import wait_for_no_disk

LIBRARIES = (
    *("torch", "transformers", "transformers.modeling_utils", "transformers.masking_utils"),
    *("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"),
    *("transformers.models.llama.modeling_llama", "transformers.models.bert.modeling_bert"),
    *("transformers.integrations.sdpa_attention", "transformers.tokenization_utils_tokenizers"),
    *("flwr.app", "flwr.clientapp", "flwr.serverapp"),
    *("flwr.superlink.cli.flower_superlink", "flwr.supernode.cli.flower_supernode"),
    *("flwr.superlink.main", "alembic.command", "alembic.autogenerate"),
    *("flwr.supernode.runtime.run_clientapp", "flwr.supercore.superexec.run_superexec"),
    *("numba", "safetensors.torch", "pydantic", "typer", "rich", "grpc", "httpx", "uvicorn"),
    *("cryptography.hazmat.primitives.asymmetric.ec", "psutil"),
    *("scipy.stats", "sklearn.linear_model", "pandas", "matplotlib.figure"),
    *("peft", "bitsandbytes", "executorch.exir", "torch.onnx", "torch._inductor.compile_fx"),
    *("executorch.backends.xnnpack.partition.xnnpack_partitioner", "ray", "ray.dag"),
    *("flwr.supernode.main", "flwr.supercore.cli.flower_superexec", "anyio._backends._asyncio"),
    *("uvicorn.loops.auto", "uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto"),
    *("uvicorn.lifespan.on", "pydantic.dataclasses", "safetensors.numpy", "grpc._channel"),
    "cryptography.hazmat.primitives.ciphers.aead",
)
OUR_MODULES = (
    *("samara.command", "samara.devices.live.commands", "samara.devices.live.client_supervisor"),
    *("samara.devices.live.trainer_process", "samara.devices.live.checks.preflight"),
    *("samara.devices.live.connection.supernode", "samara.devices.gateway.process"),
    *("samara.server.live.run_supervisor", "samara.server.live.superlink", "samara.server.app"),
)
"""The modules of Samara's processes."""
_variables_of_ours: dict[str, str] = {}
"""The variables that these modules set while they are imported."""
_ROOT = Path(__file__).parents[1]
_PACKAGES = {"samara", "ipykernel_launcher"}
_PYTEST_WORKER = ["-u", "-c", popen_bootstrapline]
_READ_WHILE_IMPORTING = (
    *("PYTHON", "LANG", "LC_", "LD_", "OMP_", "MKL_", "OPENBLAS_", "NUMBA_", "TORCH", "TRITON_"),
    *("HF_", "TRANSFORMERS_", "GRPC_", "FLWR_TELEMETRY"),
)
"""Beginnings of the names of variables that libraries read during their import."""
_SET_ANYWAY = "PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR", "GRPC_VERBOSITY"
"""Variables of this kind that a fork takes over, or that libraries set during their import."""
_PR_SET_CHILD_SUBREAPER = 36
_MADV_COLLAPSE = 25
_ROOM = 16384
"""Room for a fork's command line, in bytes."""
_LONGEST_COMMAND = 2**17
"""Largest size in bytes of a command with its environment."""
_LONGEST_SLEEPS = {
    "flwr.supernode.start_client_internal": 0.5,  # between polls of the server; otherwise 3 s
    "flwr.supercore.logger": 0.2,  # at a ServerApp's end, for its last log lines; otherwise 1 s
}
"""The longest sleep in seconds in modules of Flower for which live runs would mostly wait.

A poll costs server and client 12 ms of processor time together.
"""


LOADED = "# begins with the libraries loaded\n"
"""First line of a program of `-c` that is forked."""


class Request(NamedTuple):
    """A process to fork.

    Attributes:
        words: the arguments; `-m` and a module, `-c` and a program, or the path of a script comes
            first.
        ignored: numbers of the signals that the process ignores.
        umask: its file mode creation mask.
    """

    words: list[str]
    environment: dict[str, str]
    folder: str
    new_session: bool
    ignored: list[int]
    umask: int


@cache
def scripts() -> dict[str, str]:
    """Names of this environment's scripts that can be forked, with their modules and functions."""
    return {
        point.name: point.value
        for point in entry_points(group="console_scripts")
        if point.name == "samara" or (point.dist and point.dist.name == "flwr")
    }


class Zygote:
    """A zygote, as seen from the process that requests forks.

    Args:
        channel: a connected socket to it.
        variables: variables of its environment that libraries read.
    """

    def __init__(self, channel: socket.socket, variables: dict[str, str]) -> None:
        self._channel, self._lock, self.variables = channel, threading.Lock(), variables

    @classmethod
    def start(cls) -> "Zygote":
        """Start a zygote that imports the libraries."""
        here, there = socket.socketpair()
        there.set_inheritable(True)
        command = [sys.executable, __file__, str(there.fileno()), "-" * _ROOM]
        nothing = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_RDWR, 0) for n in range(3)]
        environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
        os.posix_spawn(sys.executable, command, environment, file_actions=nothing)
        there.close()
        return cls(here, import_variables(os.environ))

    def fork(self, request: Request, streams: list[int]) -> int:
        """Return the id of the forked process, a child of this one.

        Raises:
            OSError: if the zygote has ended.
        """
        data = json.dumps(request).encode()
        libc = ctypes.CDLL(None)
        with self._lock:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._channel, [len(data).to_bytes(4, "little")], streams)
                self._channel.sendall(data)
                answer = self._channel.recv(4)
            finally:
                libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not answer:
            raise OSError("the zygote has ended")
        return int.from_bytes(answer, "little")


def import_variables(environment: Any) -> dict[str, str]:
    """The variables that libraries read during their import, except the module path."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_WHILE_IMPORTING) and name not in _SET_ANYWAY
    }


usual_popen = subprocess.Popen
_zygote: Zygote | None = None
_zygote_lock = threading.Lock()


def _zygote_of_this_process() -> Zygote:
    global _zygote
    with _zygote_lock:
        _zygote = _zygote or Zygote.start()
    return _zygote


def _forkable_words(args: Any, environment: Any) -> list[str] | None:
    """The arguments of a forkable command, starting with `-m`, `-c` or the script's path."""
    if _has_other_code(environment):
        return None
    words = [os.fspath(args)] if isinstance(args, str | os.PathLike) else list(map(os.fspath, args))
    if words[0] == sys.executable:
        if words[1:] == _PYTEST_WORKER:
            return ["-c", words[3]]
        is_ours = words[1] == "-m" and words[2].split(".")[0] in _PACKAGES
        is_loaded = words[1] == "-c" and words[2].startswith(LOADED)
        return words[1:] if is_ours or is_loaded else None
    found = shutil.which(words[0], path=environment.get("PATH"))
    here = Path(sys.executable).parent
    if found and Path(found).parent == here and Path(found).name in scripts():
        return [found, *words[1:]]
    return None


def _has_other_code(environment: Any) -> bool:
    """Return whether a module path begins with another checkout.

    Its protocol buffers cannot be registered beside those of this checkout.
    """
    paths = map(Path, filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))
    code = [path.resolve() for path in paths if (path / "samara" / "__init__.py").exists()]
    return bool(code) and code[0] != _ROOT


def _umask() -> int:
    """The file mode creation mask of this process, read without `os.umask`, which would set it."""
    found = re.search(r"^Umask:\t(\d+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1], 8)


class ForkingPopen(usual_popen):  # type: ignore[misc, valid-type]
    """`subprocess.Popen` whose process is forked from the zygote if possible."""

    def _execute_child(self, *arguments: Any) -> None:
        args, executable, preexec_fn, _, pass_fds, cwd, env = arguments[:7]
        shell, streams = arguments[9], arguments[10:16]
        gid, gids, uid, umask, new_session, group = arguments[17:23]
        environment = {os.fsdecode(k): os.fsdecode(v) for k, v in (env or os.environ).items()}
        others = (executable, preexec_fn, pass_fds, shell, gid, gids, uid)
        plain = not any(others) and umask == -1 and group == -1
        words = _forkable_words(args, environment) if plain else None
        folder = os.path.abspath(os.fsdecode(cwd or "."))
        if words and os.path.isdir(folder):
            zygote = _zygote_of_this_process()
            ignored = [
                number
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
                if signal.getsignal(number) is signal.SIG_IGN
            ]
            request = Request(words, environment, folder, bool(new_session), ignored, _umask())
            read, _, _, write, _, error = streams
            wanted = [read, write, error]
            files = [own if file == -1 else file for own, file in enumerate(wanted)]
            if import_variables(environment) == zygote.variables:
                with suppress(OSError):
                    self.pid = zygote.fork(request, files)
                    self._child_created = True
                    self._close_pipe_fds(*streams)
                    return
        super()._execute_child(*arguments)


@contextmanager
def command_server(folder: Path) -> Iterator[list[str]]:
    """Fork processes for shells; yield the words that replace Python in their commands.

    Args:
        folder: folder of the socket; its path must be short.
    """
    address = str(folder / "commands.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        threading.Thread(target=_serve_commands, args=(listener,), daemon=True).start()
        try:
            yield [
                sys.executable,
                "-IS",
                str(Path(__file__).with_name("forked_command.py")),
                address,
            ]
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _serve_commands(listener: socket.socket) -> None:
    with suppress(OSError):  # it is shut down
        while True:
            channel, _ = listener.accept()
            threading.Thread(target=_run_command, args=(channel,), daemon=True).start()


def _run_command(channel: socket.socket) -> None:
    """Start the process of a command, pass signals on to it, and report its end."""
    data, streams, _, _ = socket.recv_fds(channel, _LONGEST_COMMAND, 3)
    words, folder, environment = json.loads(data)
    stdin, stdout, stderr = streams
    process = ForkingPopen(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
    )
    for stream in streams:
        os.close(stream)

    def report() -> None:
        status = process.wait()
        with suppress(OSError):  # the command was killed
            channel.send(str(status).encode())

    threading.Thread(target=report, daemon=True).start()
    with channel:
        with suppress(ConnectionResetError):
            while number := channel.recv(1):
                process.send_signal(number[0])
        process.kill()


def _next_request(channel: socket.socket) -> tuple[Request, list[int]]:
    """Fork a process for every request; only the forked processes return."""
    while True:
        header, streams, _, _ = socket.recv_fds(channel, 4, 3)
        if not header:
            os._exit(0)  # whoever had this zygote has ended
        size, data = int.from_bytes(header, "little"), b""
        while len(data) < size:
            data += channel.recv(size - len(data))
        middle = os.fork()
        if middle == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == between:  # until it is a child of the process that asked
                os.sched_yield()
            request = Request(*json.loads(data))
            if request.new_session:
                os.setsid()
            channel.sendall(os.getpid().to_bytes(4, "little"))
            channel.close()
            return request, list(streams)
        os.waitpid(middle, 0)
        for stream in streams:
            os.close(stream)


def _write_command_line(words: list[str]) -> None:
    """Give this process a command line, which `ps` then shows."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(stat[45]), int(stat[46])
    data = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - begin - 1]
    ctypes.memmove(begin, data.ljust(end - begin, b"\0"), end - begin)


def _become(request: Request, streams: list[int]) -> None:
    """Take over the streams, environment, folder and module path of a command."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in set(streams) - {0, 1, 2}:
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request.ignored:
        signal.signal(number, signal.SIG_IGN)
    os.umask(request.umask)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    if level := os.environ.get("FLWR_LOG_LEVEL"):  # Flower reads it while it is imported
        importlib.import_module("flwr.supercore.logger").update_console_handler(level)
    paths = list(filter(None, request.environment.get("PYTHONPATH", "").split(os.pathsep)))
    folders = {"-m": request.folder, "-c": request.folder}
    first = folders.get(request.words[0], os.path.dirname(request.words[0]))
    sys.path[:0] = [os.path.abspath(path) for path in (first, *paths) if path]
    files = [file for path in paths if (file := Path(path, "sitecustomize.py")).exists()]
    if files or not _is_ours(request.words):
        _forget_our_modules()
    else:
        os.environ.update(_variables_of_ours | request.environment)
    if files:
        runpy.run_path(str(files[0]))


def _import_our_modules() -> None:
    before = dict(os.environ)
    sys.path.insert(0, str(_ROOT))
    for name in OUR_MODULES:
        importlib.import_module(name)
    del sys.path[0]
    _variables_of_ours.update(os.environ.items() - before.items())


def _is_ours(words: list[str]) -> bool:
    """Return whether a command is Samara's."""
    name = words[1].split(".")[0] if words[0] == "-m" else Path(words[0]).name
    return name == "samara"


def _forget_our_modules() -> None:
    """Undo the import of Samara for a command that is not Samara's."""
    for name in [name for name in sys.modules if name.split(".")[0] == "samara"]:
        del sys.modules[name]
    sys.meta_path[:] = [each for each in sys.meta_path if not each.__module__.startswith("samara.")]


def _run(words: list[str]) -> None:
    """Run a module, or a script of this environment, as the main program."""
    if words[0] == "-m":
        sys.argv = words[1:]
        if words[1] != "samara":
            sys.modules.pop(words[1], None)  # it runs as `__main__`
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        module, _, function = scripts()[Path(words[0]).name].partition(":")
        sys.exit(getattr(importlib.import_module(module), function)())


def _run_to_the_end(words: list[str]) -> NoReturn:
    """Run a program and end like the interpreter, but without freeing the libraries' memory."""
    status = 0
    try:
        _run(words)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)


def _prepare_numba() -> None:
    """Make numba register its functions, like the first call of a compiled function."""
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def copy_flowers_tables() -> None:
    """Make Flower copy the tables of a new database, instead of migrating it to every revision."""
    from flwr.supercore import sql_mixin
    from sqlalchemy import create_engine

    migrate = sql_mixin.run_migrations
    with TemporaryDirectory() as folder:
        file = Path(folder, "tables.db")
        migrate(engine := create_engine(f"sqlite:///{file}"))
        engine.dispose()
        with closing(sqlite3.connect(file)) as database:
            tables = database.serialize()
    copied = set[str]()

    def copy_or_migrate(engine: Any) -> None:
        with closing(engine.raw_connection()) as connection:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                with closing(sqlite3.connect(":memory:")) as database:
                    database.deserialize(tables)
                    database.backup(connection.driver_connection)
                copied.add(str(engine.url))
        if str(engine.url) not in copied:
            migrate(engine)

    sql_mixin.run_migrations = copy_or_migrate


class _WhenRead:
    """An attribute of a graph's module that exists once the code of the graph is compiled."""

    def __init__(self, name: str, compile_code: Callable[[Any], Any]) -> None:
        self._name, self._compile_code = name, compile_code

    def __get__(self, module: Any, kind: type) -> Any:
        if module is None:
            return self
        self._compile_code(module)
        return getattr(module, self._name)


@cache
def shorten_exports() -> None:
    """Make torch's exports omit work whose result is replaced or not read.

    The passes of an export share the recorded origins of nodes, which each would copy. Nodes have
    no stack traces. The operators of C++ are listed once. The code of a graph is compiled when it
    is read: most passes only read the graph.
    """
    import torch.fx.config
    from torch._export import utils
    from torch.fx import GraphModule
    from torch.fx.traceback import NodeSource

    NodeSource.__deepcopy__ = lambda source, _: source  # type: ignore[attr-defined]
    torch.fx.config.do_not_emit_stack_traces = True
    utils._materialize_cpp_cia_ops = cache(utils._materialize_cpp_cia_ops)
    compile_code = GraphModule.recompile

    def recompile(module: Any) -> None:
        if arguments := getattr(module.graph._codegen, "pytree_info", None):
            module._in_spec, module._out_spec = arguments.in_spec, arguments.out_spec
        module.__dict__.pop("_code", None)
        type(module).forward = _WhenRead("forward", compile_code)

    GraphModule.recompile = recompile  # type: ignore[assignment]
    GraphModule._code = _WhenRead("_code", compile_code)


def _shorten_sleeps() -> None:
    """Shorten Flower's sleeps as in `_LONGEST_SLEEPS`; the clock stays the real one."""
    for name, longest in _LONGEST_SLEEPS.items():
        shortened = SimpleNamespace(**vars(time))
        shortened.sleep = lambda seconds, longest=longest: time.sleep(min(seconds, longest))
        importlib.import_module(name).time = shortened  # type: ignore[attr-defined]


def _take_huge_pages() -> None:
    """Put this process's memory on huge pages if possible, so that a fork copies fewer entries."""
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, inode = line.split()[:5]
        if access == "rw-p" and inode == "0":
            begin, end = (int(address, 16) for address in addresses.split("-"))
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_COLLAPSE)


def main() -> None:
    """Import the libraries, and fork processes until the process that started this one ends."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    variables = import_variables(os.environ)
    del sys.path[0]  # the folder of this file
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    _import_our_modules()
    logging.root.handlers.clear()  # xnnpack's partitioner adds one
    _prepare_numba()
    copy_flowers_tables()
    _shorten_sleeps()
    shorten_exports()
    wait_for_no_disk()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.detach()  # every fork would remove torch's operators at its end, one by one
    gc.collect()
    gc.freeze()
    _take_huge_pages()
    gc.set_threshold(20_000, 10, 10)  # a twenty-fifth of the time went into looking for garbage
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _write_command_line(["zygote"])
    while True:
        request, streams = _next_request(channel)
        here, channel = socket.socketpair()
        if os.fork():
            break
        here.close()
        for stream in streams:
            os.close(stream)
    channel.close()
    sys.modules["forked"] = sys.modules["__main__"]  # a forked worker of pytest has this zygote
    _write_command_line([sys.executable, *request.words])
    _become(request, streams)
    global _zygote
    _zygote = Zygote(here, variables)
    subprocess.Popen = ForkingPopen  # type: ignore[misc]
    _run_to_the_end(request.words)


if __name__ == "__main__":
    main()
