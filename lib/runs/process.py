"""Processes of a study: they die together, never work twice in one folder, and share the GPUs."""

import ctypes
import fcntl
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


class RunError(RuntimeError):
    """A run that failed or cannot start, with what to do."""


def die_with_parent() -> None:
    """Ask the system to kill this process when its parent ends, however that ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


@contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder; wait while another process does. The system drops the lock when its holder dies."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"> {what}: another process works on it; waiting", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def gpus() -> list[str]:
    """This machine's GPUs; COUNTDOWN_GPUS or CUDA_VISIBLE_DEVICES narrow them."""
    for variable in ("COUNTDOWN_GPUS", "CUDA_VISIBLE_DEVICES"):
        if variable in os.environ:
            return [name for name in os.environ[variable].split(",") if name]
    return sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))


@contextmanager
def gpu() -> Iterator[str | None]:
    """Hold one GPU, the first that is free: its number, or None where there are none."""
    devices = gpus()
    if not devices:
        yield None
        return
    with ExitStack() as stack:
        while True:
            for device in devices:
                lock = stack.enter_context(open(Path(tempfile.gettempdir()) / f"countdown-gpu-{device}", "w"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield device
                return
            time.sleep(1)
