"""Check that a run that is killed again and again ends with the same files as an undisturbed run.

    .venv/bin/python benchmarks/endurance.py [--kills 50] [--seed 0]

Runs the small configuration of the tests once undisturbed, then with SIGKILL at random moments, resuming it until it
finishes, and compares every file that does not contain times. Prints a summary; the exit status is 1 if a file differs.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers import TINY_RUN as TINY
from helpers import results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    moments, started, killed = random.Random(arguments.seed), 0, 0
    differing: list[str] = []  # files of any run
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "tiny.toml").write_text(TINY)
        start = time.perf_counter()
        run(work, "whole").communicate()
        undisturbed_seconds = time.perf_counter() - start
        expected = results(work / "whole")
        runs = 0
        while killed < arguments.kills:
            out = f"killed-{runs}"
            process = run(work, out)
            started += 1
            try:
                process.communicate(timeout=moments.uniform(1.5, undisturbed_seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                killed += 1
                continue
            found = differences(results(work / out), expected)
            differing += found
            print(f"run {runs}: finished after {started} starts, {killed} kills so far, {found or 'no differences'}")
            runs += 1
        run(work, f"killed-{runs}").communicate()
        differing += differences(results(work / f"killed-{runs}"), expected)
    print(f"{killed} kills, {started + 1} starts, {runs + 1} runs, {len(expected)} files each: ", end="")
    print(differing or "no differences")
    sys.exit(1 if differing else 0)


def run(work: Path, name: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "pairloc", "run", str(work / "tiny.toml"), "--out", str(work / name)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def differences(found: dict[str, bytes], expected: dict[str, bytes]) -> list[str]:
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))


if __name__ == "__main__":
    main()
