"""Kill workers and remove machines while a run works on a cluster of two nodes on this machine: nothing may differ.

    .venv/bin/python benchmarks/cluster.py OUT [--trials 50] [--images 60] [--only node]

Every trial finds boxes in generated scenes with the packaged weights on a Ray cluster of two nodes with one core each.
In every second one, a worker that is busy is killed at a random time; in the others, the second node is removed and
another one comes. Prints, as a line of JSON for each trial, what was done when, the seconds, and whether boxes,
confidence and bags are those of one process, byte by byte; then a summary.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch

from pairloc.executors.cluster import connect
from pairloc.runs.localize import localize, localize_settings
from pairloc.settings import SceneSettings

RESULTS = ("boxes.json", "full/explanations.json", "bags/target")


def busy_workers() -> list[int]:
    """The processes of Ray that work on a task now."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                title = (folder / "cmdline").read_bytes().split(b"\0")[0]
            except OSError:
                continue  # it has ended
            if title.startswith(b"ray::_perform"):
                found.append(int(folder.name))
    return found


def content(out: Path) -> dict[str, bytes]:
    """The bytes of the results of a run."""
    files: list[Path] = []
    for name in RESULTS:
        files += sorted((out / name).rglob("*")) if (out / name).is_dir() else [out / name]
    return {file.relative_to(out).as_posix(): file.read_bytes() for file in files if file.is_file()}


def disturb(nodes: Any, second: Any, what: str, after: float, done: list[str]) -> None:
    """Kill a busy worker, or remove the second node, after some seconds."""
    time.sleep(after)
    if what == "worker":
        for _ in range(200):
            workers = busy_workers()
            if workers:
                os.kill(random.choice(workers), signal.SIGKILL)
                done.append("killed a worker")
                return
            time.sleep(0.02)
        return
    with contextlib.suppress(AssertionError):  # its processes are gone, but not yet waited for
        nodes.remove_node(second, allow_graceful=False)
    done.append("removed a node")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--only", choices=("worker", "node"))
    options = parser.parse_args()
    from ray.cluster_utils import Cluster

    from pairloc.curation.scenes import write_scenes

    torch.set_num_threads(1)
    random.seed(0)
    options.out.mkdir(parents=True, exist_ok=True)
    scenes = options.out / "scenes"
    if not scenes.is_dir():
        write_scenes(scenes, SceneSettings(source_images=1, target_images=options.images))

    def run(name: str, cluster: str | None) -> tuple[float, dict[str, bytes]]:
        folder = options.out / name
        shutil.rmtree(folder, ignore_errors=True)
        settings = localize_settings(scenes / "images", scenes / "target_tags.csv", device="cpu", cluster=cluster)
        settings = settings.model_copy(update={"extract": settings.extract.model_copy(update={"shard": 8})})
        start = time.perf_counter()
        localize(settings, folder, "cpu", log=lambda line: None)
        return time.perf_counter() - start, content(folder)

    seconds, expected = run("alone", None)
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    connect(nodes.address)  # to the head; the other node may go
    second = nodes.add_node(num_cpus=1)
    calm, same = run("calm", nodes.address)
    print(
        json.dumps({"one process": round(seconds, 1), "cluster": round(calm, 1), "same": same == expected}), flush=True
    )
    different = 0
    for trial in range(options.trials):
        what, after, done = options.only or ("worker", "node")[trial % 2], random.uniform(0, 0.8 * calm), list[str]()
        thread = threading.Thread(target=disturb, args=(nodes, second, what, after, done))
        thread.start()
        taken, found = run("trial", nodes.address)
        thread.join()
        if what == "node":
            second = nodes.add_node(num_cpus=1)
        different += found != expected
        row = {"trial": trial, "after": round(after, 1), "done": done, "seconds": round(taken, 1)}
        print(json.dumps(row | {"same": found == expected}), flush=True)
    print(f"{options.trials} trials, {different} different")


if __name__ == "__main__":
    main()
