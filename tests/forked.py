"""Python processes that have their imports behind them: forked by a server that imported the frameworks once.

``Popen`` takes ``[sys.executable, "-c" or "-m", …]`` and is ``subprocess.Popen`` otherwise. Each process is a real one,
with its own pipes, environment, folder and session, and dies by signals as any other; only the seconds that importing
frameworks takes are not spent anew. The server itself computes nothing, so that there is nothing to inherit.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
from typing import Any

FRAMEWORKS = (
    "torch._inductor.compile_fx", "unifiedamp_torch.backend", "unifiedamp_examples.models.torch_models",
    "tensorflow", "unifiedamp_tensorflow.backend", "unifiedamp_examples.models.tensorflow_models",
    "unifiedamp.cli", "unifiedamp.workloads.compare.job", "unifiedamp_examples.recipe",
    "sklearn.datasets", "matplotlib.pyplot",
)  # fmt: skip
"""MXNet is not among them: it is imported in a second, and starts its threads anew at each fork."""
KIT = (
    "pytest", "_pytest.doctest", "hypothesis", "numpy", "rich.console", "toy.harness",
    "unifiedamp.checkpoint.sealed_file", "unifiedamp.config",
)  # fmt: skip

SERVER = "import sys; import forked; forked.serve(int(sys.argv[1]), sys.argv[2:])"


class Server:
    """The process that imports ``modules`` (those that there are) and forks."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(theirs.fileno()), *modules],
            # numpy's BLAS starts its threads at import.
            env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        atexit.register(self.close)

    def ask(self, request: dict[str, Any], files: list[int] | None = None) -> Any:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files or [])
            answer = self._socket.recv(1 << 16)
        assert answer, "the server that forks processes is gone"
        return json.loads(answer)

    def close(self) -> None:
        """End the server; what it forked and nobody waits for lives on as an orphan."""
        self._socket.close()
        self._process.wait(60)


server = functools.cache(Server)


class Popen(subprocess.Popen):
    """A process that ``modules``' server forks; started anew where the server has threads, which do not fork well."""

    modules = FRAMEWORKS

    def _execute_child(
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest,
    ):  # fmt: skip
        """Have the server fork instead; ``rest`` ends with ``start_new_session`` and ``process_group``."""
        arguments = [os.fspath(one) for one in args]
        assert arguments[0] == sys.executable, arguments
        session = rest[-2] if len(rest) > 1 else False
        request = {"argv": arguments[1:], "cwd": os.fspath(cwd or os.getcwd()), "session": bool(session)}
        request["env"] = dict(os.environ if env is None else env)
        files = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        self.args, self._server = args, server(self.modules)
        self.pid = self._server.ask(request, files)
        if self.pid is None:
            self._server = None
            return super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest,
            )  # fmt: skip
        self._child_created = True
        return self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _try_wait(self, wait_flags):
        while self._server is not None:
            pid, status = self._server.ask({"wait": self.pid})
            if pid or wait_flags & os.WNOHANG:
                return pid, status
            threading.Event().wait(0.01)
        return super()._try_wait(wait_flags)

    def _internal_poll(self, *_, **__):
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


class Anew(Popen):
    """A process started as any other: what is forked shares its server's hash seed, so an order of a set shows here."""

    def _execute_child(self, *given):
        self._server = None
        return subprocess.Popen._execute_child(self, *given)


class KitPopen(Popen):
    """A process that runs pytest."""

    modules = KIT


def start(command: list[Any], popen: type[Popen] = Popen, **options: Any) -> Popen:
    """Start a process whose output is read as text."""
    return popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def run(command: list[Any], popen: type[Popen] = Popen, timeout: float = 240, **options: Any) -> Any:
    """As ``subprocess.run``, with the output captured as text."""
    with start(command, popen, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def like_subprocess(popen: type[Popen]) -> types.SimpleNamespace:
    """What ``unifiedamp.workloads.workers`` uses of ``subprocess``."""
    return types.SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)


# -- the server's side -------------------------------------------------------------------------------------------------


def serve(fileno: int, modules: list[str]) -> None:
    """Import ``modules`` and fork until the other side is gone; in a forked process, run what was asked for."""
    for name in modules:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            try:
                importlib.import_module(name)
            except ImportError:
                continue  # its framework is not installed, or too old to have it
    forks = len(os.listdir("/proc/self/task")) == 1
    gc.freeze()  # or each process would copy all that is here when it first collects
    with socket.socket(fileno=fileno) as asked:
        while True:
            message, files, _, _ = socket.recv_fds(asked, 1 << 18, 3)
            if not message:
                os._exit(0)
            request = json.loads(message)
            if "wait" in request:
                asked.send(json.dumps(_waited(request["wait"])).encode())
                continue
            pid = os.fork() if forks else None
            if pid == 0:
                break
            for file in files:
                os.close(file)
            asked.send(json.dumps(pid).encode())
    _become(request, files)


def _waited(pid: int) -> tuple[int, int]:
    try:
        return os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return pid, 0


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Be the process that was asked for."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = ["", *own, *(path for path in sys.path if path and path not in own)]
    try:
        _run(*request["argv"])
    except BaseException as error:
        _end(error)
    _end(None)


def _run(how: str, what: str, *arguments: str) -> None:
    """Run what stands behind ``python`` in a command."""
    sys.argv = [how, *arguments]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif how == "-c":
        exec(compile(what, "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.path[0], sys.argv = os.path.dirname(how), [how, what, *arguments]
        runpy.run_path(how, run_name="__main__")


def _end(error: BaseException | None) -> None:
    """End as an interpreter does, but for taking the modules apart, which would copy all that was imported."""
    threading._shutdown()
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    status = error.code if isinstance(error, SystemExit) else int(error is not None)
    if error is not None and not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    elif isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)
