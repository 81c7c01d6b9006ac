"""Resuming under load: a small group of runs, killed again and again at random moments, ends like
an undisturbed one.

`make test-resume KILLS=20 GROUP=paths`. Each time, one random process of the study (the command
that was given, Snakemake, a runner, a kernel) gets SIGKILL, and then the same command is given
again. At the end, all results must equal those of an undisturbed study."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lib.files import ROOT
from tests.pages.test_notebooks import front_door, same_results

SIGNS = ("lib.runs make", "-m snakemake", "lib.runs run", "ipykernel_launcher")
# seconds: the front door and Snakemake take some of them before the first run begins
SHORTEST = 30.0


def processes(runs: Path) -> list[tuple[str, int]]:
    """Those of a study: its processes know their runs' folder from the environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            ours = f"COUNTDOWN_RUNS={runs}\0".encode() in (entry / "environ").read_bytes() + b"\0"
        except OSError:
            continue
        found += [(sign, int(entry.name)) for sign in SIGNS if ours and sign in command]
    return found


def killed_once(group: str, runs: Path, rng: random.Random, longest: float) -> str:
    """Start the study, kill one of its processes within `longest` seconds, wait for the rest to
    end.

    Whom it hit; "" if the study had ended before.
    """
    command = [sys.executable, "-m", "lib.runs", "make", "smoke", group, "--cores", "2"]
    front = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"COUNTDOWN_RUNS": str(runs)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    when = time.monotonic() + rng.uniform(0, longest)
    while time.monotonic() < when and front.poll() is None:
        time.sleep(0.2)
    there = processes(runs)
    if front.poll() is not None or not there:
        said = front.communicate()[0].decode()
        assert front.returncode == 0, said
        return ""
    # a role first: there are more runners than front doors
    role = rng.choice(sorted({role for role, _ in there}))
    victim = rng.choice([process for found, process in there if found == role])
    os.kill(victim, signal.SIGKILL)
    front.communicate()
    until = time.monotonic() + 60
    while processes(runs):
        assert time.monotonic() < until, f"these go on alone: {processes(runs)}"
        time.sleep(0.2)
    return role


def main(kills: int, group: str, seed: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="resume-") as scratch:
        quiet = Path(scratch) / "quiet"
        killed = Path(scratch) / "killed"
        began = time.monotonic()
        hits = 0
        print(f"one or two minutes for the study in peace, then {kills} kills", flush=True)
        front_door(group, quiet)
        peace = time.monotonic() - began
        longest = max(2 * peace / kills, SHORTEST)  # the kills lie spread over one study
        # the study once more to its end, and half of the longest wait before each kill
        minutes = (2 * peace + kills * longest / 2) / 60
        print(f"a study in peace: {peace:.0f} s; all in all about {minutes:.0f} min", flush=True)
        while hits < kills:
            role = killed_once(group, killed, rng, longest)
            done = len(list(killed.glob("smoke/*/*/*/run.json")))
            if role:
                hits += 1
                print(f"kill {hits} of {kills}: {role}; {done} runs are finished", flush=True)
            else:
                same = same_results(killed / "smoke", quiet / "smoke")
                print(f"nobody, it had ended: {same} results are the same; begins anew", flush=True)
                shutil.rmtree(killed)
        front_door(group, killed)
        print(
            f"seed {seed}: {same_results(killed / 'smoke', quiet / 'smoke')} results are the same "
            f"as without kills"
        )


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        sys.argv[2],
        int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(10**6),
    )
