"""Processes of a study: they end with their parent, lock the folders that they write to, and share
the GPUs."""

import ctypes
import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from lib.files import container_limit

DEVICES = Path("/dev")
NO_GPU = ("", "-1", "NoDevFiles")  # in CUDA_VISIBLE_DEVICES
PARENT = "COUNTDOWN_PARENT"  # the environment variable with the process id of the starter


class RunError(RuntimeError):
    """A run failed or cannot start. The message says what to do."""


def die_with_parent(parent: int = 0) -> None:
    """Ask Linux to kill this process when its parent ends, or at once if `parent`, a process id,
    has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if parent and os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def caches(runs: Path) -> dict[str, str]:
    """Environment variables that move the caches of Snakemake and Matplotlib into the folder
    `runs`; {} if the usual place in the user's home can be written to."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    with suppress(OSError):
        if default.is_absolute():  # it is relative if the user has no home
            default.mkdir(parents=True, exist_ok=True)
            if os.access(default, os.W_OK):
                return {}
    return {"XDG_CACHE_HOME": f"{runs}/.cache", "MPLCONFIGDIR": f"{runs}/.cache/matplotlib"}


def cores() -> int:
    """The number of cores that this process may use: those it is bound to, or fewer if its
    container is limited."""
    core_count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota, _, period = container_limit("cpu.max").partition(" ")
    return (
        max(1, min(core_count, int(quota) // int(period)))
        if quota.isdigit() and period.isdigit()
        else core_count
    )


# --- locks, which the system releases when a process ends -----------------------------------------


def try_lock(file) -> bool:
    """Lock an open file. Returns False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


@contextmanager
def locked(folder: Path, run: str) -> Iterator[None]:
    """Lock the folder of a run. Waits as long as another process has locked it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not try_lock(handle):
            print(f"> {run}: another process works on it; waiting", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def gpus() -> list[str]:
    """The GPUs of this machine, by the UUIDs that their driver gives, or those that the variable
    COUNTDOWN_GPUS or CUDA_VISIBLE_DEVICES lists. If the driver cannot be asked, the device files
    are only counted, and the GPUs are numbered from 0: the only GPU of a container may be the file
    nvidia3, but CUDA calls it 0."""
    for variable in ("COUNTDOWN_GPUS", "CUDA_VISIBLE_DEVICES"):
        if variable in os.environ:
            return [name for name in os.environ[variable].split(",") if name not in NO_GPU]
    if devices := list(DEVICES.glob("nvidia[0-9]*")):
        with suppress(OSError, subprocess.CalledProcessError):
            listing = subprocess.run(
                ["nvidia-smi", "-L"], capture_output=True, text=True, check=True
            ).stdout
            if uuids := re.findall(r"^GPU \d+: .*\(UUID: (\S+)\)", listing, re.M):
                return uuids
    return [str(number) for number in range(len(devices))]


@contextmanager
def gpu() -> Iterator[str | None]:
    """Lock the first free GPU, waiting until there is one, and yield its name. Yields None if the
    machine has no GPU. GPUs that other users' runs occupy are not noticed. A Slurm job has its GPUs
    to itself and numbers them on its own, so the names of its locks contain the job's id."""
    prefix = (
        f"{tempfile.gettempdir()}/countdown-gpu-{os.getuid()}-{os.environ.get('SLURM_JOB_ID', '')}"
    )
    # no link is followed, and no file is emptied
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with ExitStack() as stack:
        locks = {}
        device = None
        for name in gpus():  # the names of old MIG devices hold slashes
            locks[name] = os.open(f"{prefix}-{name.replace('/', '-')}", flags, 0o600)
            stack.callback(os.close, locks[name])
        while locks and device is None:
            device = next((name for name, lock in locks.items() if try_lock(lock)), None)
            if device is None:
                time.sleep(1)
        yield device
