"""Kernels that are forked from one process, which has imported what they all import.

Imports take a kernel seconds, and `make figures` starts fourteen kernels. `kernels` starts a
process that imports the modules once, as soon as somebody connects to its socket. A copy of this
file, called ipykernel_launcher.py, comes first on the path of the runs, so that each of their
kernels is a stand-in process: it lives, is interrupted and dies together with the fork that does
its work. Each fork imports the modules of lib/ anew, from its own checkout. Trainings start their
kernels as users do."""

import atexit
import ctypes
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SOCKET = "WARM_KERNELS"  # the variable that names the socket
USED = "used.json"  # in the kernel's runtime folder: its core-seconds and its memory, at its end
WAIT = 120.0  # seconds until what is imported must be there
# What studies import, and what their kernels import before the first cell.
STUDIES = (
    "debugpy.server ipykernel.kernelapp jinja2 matplotlib.backends.backend_agg "
    "matplotlib.backends.backend_pdf matplotlib.pyplot matplotlib_inline.backend_inline pandas "
    "PIL.Image pyarrow.parquet pydantic scipy.stats seaborn tqdm"
)


@contextmanager
def kernels(modules: str = STUDIES) -> Iterator[dict[str, str]]:
    """Have kernels forked from a process that has imported `modules`, names with spaces between
    them. Yields what the environment of a run has to say for that.

    Yields nothing if there is such a process already, and where the system cannot watch over a
    fork, which Linux can."""
    if SOCKET in os.environ or not hasattr(os, "pidfd_open"):
        yield {}
        return
    environment = os.environ | {
        "OPENBLAS_NUM_THREADS": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        # or the debugger prints a warning among the results
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    # short: the name of a socket has 100 bytes
    with tempfile.TemporaryDirectory(prefix="warm-", dir="/tmp") as folder:
        # found first, it stands in for ipykernel's own
        shutil.copy(__file__, f"{folder}/ipykernel_launcher.py")
        path = f"{folder}/socket"
        command = [sys.executable, "-I", __file__, path, str(os.getpid()), *modules.split()]
        # in a session of its own: Ctrl-C is for the kernels, and reaches them from those that asked
        server = subprocess.Popen(command, env=environment, start_new_session=True)
        places = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            yield {"PYTHONPATH": os.pathsep.join(places), SOCKET: path}
        finally:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(10)
            server.kill()
            server.wait()


def die_with_parent() -> None:
    """Have Linux kill this process when its parent ends, as in `lib.runs.machine`: the copy of this
    file imports nothing of lib/."""
    if hasattr(ctypes.CDLL(None), "prctl"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def serve(path: str, parent: int, modules: list[str]) -> None:
    """Fork a kernel for everyone who asks, until the process that started this one ends it, or ends
    itself.

    What has been imported is frozen: no kernel looks through it for garbage, which would also copy
    its memory."""
    die_with_parent()
    if os.getppid() != parent:  # it has ended already
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    select.select([listener], [], [])  # nothing is imported before somebody asks for a kernel
    for module in modules:
        __import__(module)
    sys.modules["PIL.Image"].preinit()  # what reads and writes the usual formats
    gc.collect()
    gc.freeze()
    while True:
        try:
            asked = listener.accept()[0]
        except SystemExit:
            return reap(0)
        if os.fork() == 0:
            listener.close()
            return attend(asked)
        asked.close()
        reap(os.WNOHANG)


def reap(options: int) -> None:
    """Wait for the children that have ended, or with 0 for all: their core-seconds become this
    process's own."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def attend(asked: socket.socket) -> None:
    """Fork the kernel, pass signals on to it, and end it with the process that asked; returns in
    the kernel alone."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    message, streams, *_ = socket.recv_fds(asked, 2**20, 3)
    if not message:  # it wanted the imports to begin
        os._exit(0)
    while not message.endswith(b"\n"):
        message += asked.recv(2**20)
    kernel = os.fork()
    if kernel == 0:
        asked.close()
        return become(streams, **json.loads(message))
    ended = os.pidfd_open(kernel)
    while ended not in (ready := select.select([asked, ended], [], [])[0]):
        said = asked.recv(1) if asked in ready else b""
        os.kill(kernel, said[0] if said else signal.SIGKILL)
        if not said:
            os._exit(0)
    _, status, usage = os.wait4(kernel, 0)
    used = {"core_seconds": usage.ru_utime + usage.ru_stime, "memory": usage.ru_maxrss}
    with suppress(OSError, KeyError):  # the folder is gone, or was never named
        folder = json.loads(message)["environment"]["JUPYTER_RUNTIME_DIR"]
        Path(folder, USED).write_text(json.dumps(used))
    asked.sendall(bytes([os.waitstatus_to_exitcode(status) % 256]))
    os._exit(0)


def become(streams: list[int], argv: list[str], environment: dict[str, str], folder: str) -> None:
    """Take the place of the process that asked, and run its kernel to the end."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.argv = ["ipykernel_launcher.py", *argv]
    from ipykernel.kernelapp import launch_new_instance

    launch_new_instance()
    atexit._run_exitfuncs()  # temporary folders are deleted
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # unloading all modules would take a third of a core-second


def ask(path: str, argv: list[str]) -> int:
    """Stand in for a forked kernel: its exit status. Ends with the process that started it, and
    raises OSError if nobody listens: once the folder of the socket is gone nobody ever will."""
    die_with_parent()
    kernel = socket.socket(socket.AF_UNIX)
    end = time.monotonic() + WAIT
    while True:
        try:
            kernel.connect(path)
            break
        except OSError:
            if time.monotonic() > end or not Path(path).parent.exists():
                raise
            time.sleep(0.1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: kernel.send(bytes([number])))
    request = {"argv": argv, "environment": dict(os.environ), "folder": os.getcwd()}
    message = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(kernel, [message], [0, 1, 2])
    kernel.sendall(message[sent:])
    status = kernel.recv(1)
    return status[0] if status else 1


if __name__ == "__main__":
    if SOCKET in os.environ:
        sys.exit(ask(os.environ[SOCKET], sys.argv[1:]))
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
