"""Processes of a study: children end with their parent, locks keep a second run out of a folder, GPUs are shared."""

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

DEVICES = Path("/dev")
CONTAINER = Path("/sys/fs/cgroup")  # the limits of a container
PARENT = "COUNTDOWN_PARENT"  # the environment variable with the process id of the starter


class RunError(RuntimeError):
    """A run that failed or cannot start, with what to do."""


def die_with_parent(parent: int = 0) -> None:
    """Ask Linux to kill this process when its parent ends, or at once if `parent`, a process id, has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if parent and os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def caches(runs: Path) -> dict[str, str]:
    """Variables that keep Snakemake and Matplotlib out of a home that cannot be written."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    with suppress(OSError):
        if usual.is_absolute():  # it is not where nobody knows of a home
            usual.mkdir(parents=True, exist_ok=True)
            if os.access(usual, os.W_OK):
                return {}
    return {"XDG_CACHE_HOME": f"{runs}/.cache", "MPLCONFIGDIR": f"{runs}/.cache/matplotlib"}


def cores() -> int:
    """The cores that this process may use: those it is bound to, or fewer where its container gets less time."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = limit("cpu.max").partition(" ")
    return max(1, min(bound, int(quota) // int(period))) if quota.isdigit() and period.isdigit() else bound


def memory_mb() -> int:
    """The memory of this machine, or of this container where that is less."""
    machine, most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), limit("memory.max")
    return min(machine, int(most) if most.isdigit() else machine) // 2**20


def limit(name: str) -> str:
    """What a container's control group says of one resource, "" where nothing does."""
    with suppress(OSError):
        return (CONTAINER / name).read_text().strip()
    return ""


# --- locks, which the system drops when their holder dies ---------------------------------------------------


def try_lock(file) -> bool:
    """Lock an open file if nobody else does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


@contextmanager
def locked(folder: Path, run: str) -> Iterator[None]:
    """Hold the folder of a run; wait while another process does."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not try_lock(handle):
            print(f"> {run}: another process works on it; waiting", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def gpus() -> list[str]:
    """This machine's GPUs, as their driver names them; COUNTDOWN_GPUS or CUDA_VISIBLE_DEVICES narrow them. Where the
    driver cannot be asked they are counted: a container's only GPU may be the file nvidia3, and is 0 to CUDA."""
    for variable in ("COUNTDOWN_GPUS", "CUDA_VISIBLE_DEVICES"):
        if variable in os.environ:
            return [name for name in os.environ[variable].split(",") if name]
    if devices := list(DEVICES.glob("nvidia[0-9]*")):
        with suppress(OSError, subprocess.CalledProcessError):
            listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
            if named := re.findall(r"^GPU \d+: .*\(UUID: (\S+)\)", listed, re.M):
                return named
    return [str(number) for number in range(len(devices))]


@contextmanager
def gpu() -> Iterator[str | None]:
    """Hold the first GPU that is free and give its name; None where there are none. Runs of other users are not seen.
    In a Slurm job, which has GPUs to itself, numbers are the job's own."""
    prefix = f"{tempfile.gettempdir()}/countdown-gpu-{os.getuid()}-{os.environ.get('SLURM_JOB_ID', '')}"
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC  # no link is followed, and no file is emptied
    with ExitStack() as stack:
        locks, held = {}, None
        for name in gpus():  # the names of old MIG devices hold slashes
            locks[name] = os.open(f"{prefix}-{name.replace('/', '-')}", flags, 0o600)
            stack.callback(os.close, locks[name])
        while locks and held is None:
            held = next((name for name, lock in locks.items() if try_lock(lock)), None)
            if held is None:
                time.sleep(1)
        yield held
