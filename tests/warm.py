"""Kernels for a test session, forked from one process that has imported what they all import.

Importing torch and transformers takes longer than all the rest of a miniature run. `python
tests/warm.py SOCKET` imports them once for all workers of a session, as soon as one of them
connects. A copy of this file, called ipykernel_launcher.py, comes first on the path of the tests'
runs, so that each of their kernels is a stand-in process: it lives, is interrupted and dies
together with the fork that does its work. Each kernel imports the modules of lib/ anew, from its
own checkout. Tests that kill processes start their kernels as users do."""

import atexit
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time

SOCKET = "WARM_KERNELS"
WAIT = 120.0  # seconds until what is imported must be there
COMMON = (
    "datasets debugpy.server ipykernel.kernelapp matplotlib.backends.backend_pdf matplotlib.pyplot "
    "matplotlib_inline.backend_inline pandas PIL.Image pyarrow.parquet pydantic scipy.stats seaborn torch tqdm "
    "transformers.masking_utils transformers.modeling_layers transformers.modeling_utils "
    "transformers.models.auto.auto_factory transformers.models.qwen2.modeling_qwen2 trl.rewards"
)


def serve(path: str) -> None:
    """Fork a kernel for everyone who asks, until the test session ends.

    What has been imported is frozen: no kernel looks through it for garbage, which would also copy
    its memory."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    select.select([listener], [], [])  # a session that asks for no kernel pays for no import
    for module in COMMON.split():
        __import__(module)
    sys.modules["PIL.Image"].preinit()  # what reads and writes the usual formats
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asked = listener.accept()[0]
        if os.fork() == 0:
            listener.close()
            return attend(asked)
        asked.close()


def attend(asked: socket.socket) -> None:
    """Fork the kernel, pass signals on to it, and end it with the process that asked; returns in
    the kernel alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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
    status = os.waitpid(kernel, 0)[1]
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
    os._exit(0)  # to take all modules apart would take a third of a core-second


def ask(path: str, argv: list[str]) -> int:
    """Stand in for a forked kernel: its exit status."""
    kernel = socket.socket(socket.AF_UNIX)
    end = time.monotonic() + WAIT
    while True:
        try:
            kernel.connect(path)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: kernel.send(bytes([number])))
    message = (
        json.dumps({"argv": argv, "environment": dict(os.environ), "folder": os.getcwd()}).encode()
        + b"\n"
    )
    sent = socket.send_fds(kernel, [message], [0, 1, 2])
    kernel.sendall(message[sent:])
    status = kernel.recv(1)
    return status[0] if status else 1


if __name__ == "__main__":
    if SOCKET in os.environ:
        sys.exit(ask(os.environ[SOCKET], sys.argv[1:]))
    serve(sys.argv[1])
