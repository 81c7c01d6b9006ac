"""Processes of a study: they die together, never work twice in one folder, and share the GPUs."""

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
from contextlib import ExitStack, contextmanager
from pathlib import Path

DEVICES = Path("/dev")
PARENT = "COUNTDOWN_PARENT"  # the process id of who starts another, in the environment


class RunError(RuntimeError):
    """A run that failed or cannot start, with what to do."""


def die_with_parent(parent: int = 0) -> None:
    """Ask the system to kill this process when its parent ends, however that ends (Linux only).

    With the parent's process id it also dies if that has ended before it could ask.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if parent and os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def caches(runs: Path) -> dict[str, str]:
    """Variables that keep Snakemake and Matplotlib out of a home that cannot be written."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    try:
        writable = usual.is_absolute()  # not where nobody knows of a home
        if writable:
            usual.mkdir(parents=True, exist_ok=True)
            writable = os.access(usual, os.W_OK)
    except OSError:
        writable = False
    here = runs / ".cache"
    return {} if writable else {"XDG_CACHE_HOME": str(here), "MPLCONFIGDIR": str(here / "matplotlib")}


def try_lock(file) -> bool:
    """Lock an open file if nobody else does. The system drops the lock when its holder dies."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def cores() -> int:
    """The cores that this process may use: those it is bound to, or fewer where its container gets less time."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = limit("cpu.max").partition(" ")
    return max(1, min(bound, int(quota) // int(period))) if quota.isdigit() and period.isdigit() else bound


def memory_mb() -> int:
    """The memory of this machine, or of this container where that is less."""
    machine, most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), limit("memory.max")
    return min(machine, int(most) if most.isdigit() else machine) // 2**20


def limit(name: str, group: Path = Path("/sys/fs/cgroup")) -> str:
    """What a container's control group says of one resource, "" where nothing does."""
    try:
        return (group / name).read_text().strip()
    except OSError:
        return ""


@contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder; wait while another process does."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not try_lock(handle):
            print(f"> {what}: another process works on it; waiting", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def gpus() -> list[str]:
    """This machine's GPUs, by the names that their driver gives them; COUNTDOWN_GPUS or CUDA_VISIBLE_DEVICES narrow
    them.

    Numbers of device files are no such names: in a container that has GPU 3 alone the file is nvidia3, and CUDA counts
    from 0. Where the driver cannot be asked, the devices are counted.
    """
    for variable in ("COUNTDOWN_GPUS", "CUDA_VISIBLE_DEVICES"):
        if variable in os.environ:
            return [name for name in os.environ[variable].split(",") if name]
    devices = sorted(DEVICES.glob("nvidia[0-9]*"))
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True) if devices else None
        said = listed.stdout if listed else ""
    except (OSError, subprocess.CalledProcessError):
        said = ""
    return re.findall(r"^GPU \d+: .*\(UUID: (\S+)\)", said, re.M) or [str(i) for i in range(len(devices))]


@contextmanager
def gpu() -> Iterator[str | None]:
    """Hold one GPU, the first that is free: its number, or None where there are none.

    The system drops the lock of a run that is killed. Other people's runs are not seen. In a Slurm job, which has GPUs
    to itself, numbers are its own.
    """
    with ExitStack() as stack:
        prefix, held = f"{tempfile.gettempdir()}/countdown-gpu-{os.getuid()}-{os.environ.get('SLURM_JOB_ID', '')}", None
        # nobody's link is followed, and no file is emptied; the names of old MIG devices hold slashes
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handles = {name: os.open(f"{prefix}-{name.replace('/', '-')}", flags, 0o600) for name in gpus()}
        locks = {name: stack.enter_context(os.fdopen(handle, "r+")) for name, handle in handles.items()}
        while locks and held is None:
            held = next((name for name, lock in locks.items() if try_lock(lock)), None)
            if held is None:
                time.sleep(1)
        yield held
