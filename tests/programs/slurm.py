"""The group headline of profile smoke through a real Slurm on this machine, with one of its jobs
killed midway: `make test-slurm`.

This needs Debian and root: Slurm and munge are installed from its packages, and stopped again at
the end. An existing `/etc/slurm/slurm.conf` is left unchanged, and in that case nothing is started.
"""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lib.files import ROOT
from lib.runs.plan import Project, read_record

CONF = Path("/etc/slurm/slurm.conf")  # where a job looks for it
SETTINGS = """\
ClusterName=countdown
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation={state}/ctld
SlurmdSpoolDir={state}/d
SlurmctldPidFile={state}/ctld.pid
SlurmdPidFile={state}/d.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
MinJobAge=3600
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
OPTIONS = "--slurm-status-command squeue --slurm-init-seconds-before-status-checks 2"
LONGEST = 3600.0  # seconds of a study


def install() -> None:
    if CONF.exists():
        sys.exit(f"{CONF} is there: this machine has a Slurm of its own, which is left alone")
    if not all(map(shutil.which, ("slurmctld", "slurmd", "munged"))):
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "slurm-wlm", "munge"], check=True, env=environment
        )


@contextmanager
def daemon(log: Path, *command: str, **options):
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **options)
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=60)


@contextmanager
def slurm(state: Path):
    """munged, slurmctld and slurmd, until the node is idle; they end with the block."""
    host = os.uname().nodename
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20 - 500
    for name in ("ctld", "d"):
        (state / name).mkdir()
    munge = pwd.getpwnam("munge")
    socket = Path("/run/munge")
    socket.mkdir(exist_ok=True)
    os.chown(socket, munge.pw_uid, munge.pw_gid)
    with ExitStack() as stack:
        stack.callback(CONF.unlink, missing_ok=True)
        CONF.write_text(SETTINGS.format(host=host, state=state, cpus=os.cpu_count(), memory=memory))
        if subprocess.run("munge -n | unmunge", shell=True, capture_output=True).returncode:
            start = daemon(
                state / "munged.log", "munged", "--foreground", user="munge", group="munge"
            )
            stack.enter_context(start)
            until(
                lambda: (
                    subprocess.run("munge -n | unmunge", shell=True, capture_output=True).returncode
                    == 0
                )
            )
        stack.enter_context(daemon(state / "ctld.log", "slurmctld", "-D"))
        stack.enter_context(daemon(state / "d.log", "slurmd", "-D"))
        until(lambda: said("sinfo", "-h", "-o", "%T") == "idle")
        stack.callback(no_job)
        yield


def no_job() -> None:
    """End what still runs: a job outlives its Slurm."""
    subprocess.run(["scancel", "--user", "root"], check=True)
    until(lambda: said("squeue", "-h") == "")


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def until(condition, seconds: float = 300):
    """Wait for a condition; its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            sys.exit("waited in vain")
        time.sleep(0.5)
    return value


def study(runs: Path, stack: ExitStack) -> subprocess.Popen:
    """The front door on the Slurm profile; whatever happens, it may not outlive its Slurm."""
    resources = ["--default-resources", "slurm_partition=main", "mem_mb=500", "runtime=30"]
    command = [
        sys.executable,
        "-m",
        "lib.runs",
        "make",
        "smoke",
        "headline",
        "--machine",
        "slurm",
        "--",
    ]
    process = subprocess.Popen(
        [*command, *OPTIONS.split(), *resources],
        cwd=ROOT,
        env=os.environ | {"COUNTDOWN_RUNS": str(runs)},
        stderr=subprocess.PIPE,
        text=True,
    )
    stack.callback(process.kill)
    return process


def main() -> None:
    install()
    with tempfile.TemporaryDirectory(prefix="slurm-") as scratch, ExitStack() as stack:
        state = Path(scratch) / "state"
        runs = Path(scratch) / "runs"
        state.mkdir()
        stack.enter_context(slurm(state))
        began = time.monotonic()
        first = study(runs, stack)
        until(
            lambda: (runs / "smoke/rloo/sparse/0/spec.json").exists() or first.poll() is not None,
            LONGEST,
        )
        # %k: the rule and run, with _ for /
        job = said("squeue", "-h", "-t", "R", "-o", "%i %k").splitlines()
        [killed] = [line.split()[0] for line in job if "rloo_sparse_0" in line]
        print(f"scancel {killed}: {job}", flush=True)
        subprocess.run(["scancel", "--signal=KILL", "--full", killed], check=True)
        message = first.communicate(timeout=LONGEST)[1]
        assert first.returncode != 0 and "failed: rloo/sparse/0" in message, (
            f"a killed job must be noticed: {message}"
        )
        assert not read_record(runs / "smoke/rloo/sparse/0")
        kept = read_record(runs / "smoke/sft/free/0").started
        second = study(runs, stack)
        message = second.communicate(timeout=LONGEST)[1]
        assert second.returncode == 0, message
        names = Project().plan("smoke", "headline").specs
        records = {name: read_record(runs / "smoke" / name) for name in names}
        assert all(records.values()), "each run is finished"
        assert records["sft/free/0"].started == kept, "a finished run is kept"
        assert said("squeue", "-h") == "", "no job is left"
        print(
            f"{len(records)} runs through Slurm, one job killed, in "
            f"{time.monotonic() - began:.0f} s"
        )


if __name__ == "__main__":
    # so that a polite end stops the daemons too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
