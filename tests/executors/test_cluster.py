"""A Ray cluster of two nodes on this machine: the same results as one process, and what happens when parts are lost."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import plain_settings, plain_transfer, planted_store, planted_truth
from pairloc.bags.extract import ExtractShard, extract, weights_hash
from pairloc.bags.store import BagStore
from pairloc.errors import InputError
from pairloc.executors import Cluster
from pairloc.executors.cluster import Job, connect
from pairloc.formats import read
from pairloc.localization.engine import learn_source, localize_target
from pairloc.settings import ExtractSettings
from runs.calling import call

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]  # Ray warns about much
SETTINGS = ExtractSettings(proposals=8, shard=3, batch=2, class_features="none")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster with two nodes of one core each; results need the same number of threads everywhere."""
    from ray.cluster_utils import Cluster as Nodes

    threads, path = torch.get_num_threads(), os.environ.get("PYTHONPATH")
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # workers import this file, and it its helpers
    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    connect(nodes.address)
    yield nodes
    import ray

    ray.shutdown()
    nodes.shutdown()
    torch.set_num_threads(threads)
    os.environ.pop("PYTHONPATH")
    if path is not None:
        os.environ["PYTHONPATH"] = path


@pytest.fixture
def cluster(nodes: Any) -> Cluster:
    return Cluster(nodes.address)


@dataclass(frozen=True)
class Visits:
    """A task that writes down every visit; what it does depends on the item."""

    folder: Path
    seconds: float = 0.0

    def __call__(self, item: int) -> int:
        (self.folder / f"{item}-{time.time_ns()}").touch()
        if item < 0:
            raise InputError(f"image {-item}.jpg cannot be read")
        if item == 7 and len(list(self.folder.glob("7-*"))) == 1:
            os._exit(1)  # as a worker that is killed
        time.sleep(self.seconds)
        return item * item

    def visits(self, item: int) -> int:
        return len(list(self.folder.glob(f"{item}-*")))


@dataclass(frozen=True)
class Costly(Visits):
    def cost(self, item: int) -> float:
        return item


@dataclass(frozen=True)
class Meeting:
    """A task that ends when another node has begun one too."""

    folder: Path

    def __call__(self, item: int) -> int:
        import ray

        (self.folder / ray.get_runtime_context().get_node_id()).touch()
        end = time.monotonic() + 60
        while len(list(self.folder.iterdir())) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        return len(list(self.folder.iterdir()))


def test_two_nodes_select_what_one_process_selects_to_the_byte(cluster: Cluster, tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s", bags=15, noise=0.6)
    learned = learn_source(store, planted_truth(store, shown), plain_transfer(steps=10))
    settings = plain_settings(rounds=1, folds=2, training={"steps": 10}, boxes={"voting_iou": 0.3})
    alone, shared = (
        localize_target(store, store.dataset, learned, settings, executor=executor) for executor in (None, cluster)
    )
    for name in ("image", "label", "boxes", "score"):
        assert getattr(alone.boxes, name).tobytes() == getattr(shared.boxes, name).tobytes(), name
    for pair in ((alone.state.selection, shared.state.selection), (alone.scores, shared.scores)):
        assert all(map(torch.equal, *pair))


def test_two_nodes_extract_the_bytes_of_one_process(
    cluster: Cluster, scenes: Path, proposer: Path, tmp_path: Path
) -> None:
    target = read(scenes / "target_tags.csv")
    seen: list[int] = []

    def track(parts: Any, images: int) -> Iterator[Any]:
        for part in parts:
            yield part
            seen.append(len(part))
        assert sum(seen) == images

    extract(target, proposer, tmp_path / "alone", SETTINGS)
    extract(target, proposer, tmp_path / "shared", SETTINGS, executor=cluster, track=track)
    files = [
        {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        for folder in (tmp_path / "alone", tmp_path / "shared")
    ]
    assert files[0] == files[1]
    assert len(BagStore(tmp_path / "shared")) == sum(seen) == len(target)


def test_results_are_in_order_and_both_nodes_work(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "meeting").mkdir()
    assert cluster.map(Meeting(tmp_path / "meeting"), [1, 2]) == [2, 2]
    assert cluster.map(Visits(tmp_path), [3, 1, 2, 5, 4, 6]) == [9, 1, 4, 25, 16, 36]
    assert list(cluster.stream(Visits(tmp_path), range(20, 60))) == [n * n for n in range(20, 60)]


def test_the_most_expensive_items_start_first(cluster: Cluster, tmp_path: Path) -> None:
    cluster.map(Costly(tmp_path, 0.3), [1, 2, 9, 3, 8])
    begun = sorted(tmp_path.iterdir(), key=lambda file: int(file.name.split("-")[1]))
    assert {file.name.split("-")[0] for file in begun[:2]} == {"9", "8"}


def test_a_stream_does_not_run_far_ahead(cluster: Cluster, tmp_path: Path) -> None:
    task = Visits(tmp_path)
    stream = cluster.stream(task, range(100, 200))
    next(stream)
    time.sleep(1)
    assert len(list(tmp_path.iterdir())) <= 8  # two for each of two cores, and those begun since
    stream.close()
    time.sleep(0.5)
    count = len(list(tmp_path.iterdir()))
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) == count


def test_wrong_input_is_one_sentence_and_is_not_tried_again(cluster: Cluster, tmp_path: Path) -> None:
    task = Visits(tmp_path, 0.1)
    with pytest.raises(InputError, match=r"^image 5\.jpg cannot be read$"):
        cluster.map(task, [-5, *range(10, 60)])
    time.sleep(0.5)
    assert task.visits(-5) == 1
    assert len(list(tmp_path.iterdir())) < 20  # the others were ended


def test_an_item_lost_with_its_worker_is_done_again_and_no_other(cluster: Cluster, tmp_path: Path) -> None:
    task = Visits(tmp_path)
    found = cluster.map(task, list(range(1, 13)))
    assert found == [n * n for n in range(1, 13)]
    assert task.visits(7) == 2
    assert [task.visits(n) for n in range(1, 13) if n != 7] == [1] * 11


def test_a_node_removed_in_the_middle_costs_its_items_alone(nodes: Any, cluster: Cluster, tmp_path: Path) -> None:
    extra = nodes.add_node(num_cpus=2)
    task = Visits(tmp_path, 0.5)
    threading.Timer(1.2, partial(nodes.remove_node, extra)).start()
    found = cluster.map(task, list(range(10, 34)))
    assert found == [n * n for n in range(10, 34)]
    again = [n for n in range(10, 34) if task.visits(n) > 1]
    assert len(again) <= 4, again  # two cores, and what had been given to them already


def test_the_parts_of_a_task_are_sent_once(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    sent: list[object] = []
    real = ray.put

    def put(value: object) -> Any:
        sent.append(value)
        return real(value)

    monkeypatch.setattr(ray, "put", put)
    task = Visits(tmp_path)
    for _ in range(3):
        cluster.map(task, [1, 2])
    assert sum(value is tmp_path for value in sent) == 1
    assert sum(isinstance(value, Job) for value in sent) == 3


def test_other_versions_and_other_weights_are_refused_by_name(cluster: Cluster, proposer: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has pairloc .*, but the run has 0\.0; install the same"):
        Job(1, abs, {}, version="0.0").task()
    hashes = {"proposer": weights_hash(proposer), "features": "0" * 64}
    task = ExtractShard({"proposer": proposer, "features": proposer}, hashes, None, SETTINGS, "cpu")
    with pytest.raises(InputError, match="has other weights on "):
        task([tmp_path / "a.jpg"])


def test_an_image_that_a_node_cannot_see_is_named(
    cluster: Cluster, scenes: Path, proposer: Path, tmp_path: Path
) -> None:
    target = read(scenes / "target_tags.csv")
    moved = target.path(4)
    hidden = moved.with_suffix(".hidden")
    moved.rename(hidden)
    try:
        with pytest.raises(InputError, match=moved.name):
            extract(target, proposer, tmp_path / "store", SETTINGS, executor=cluster)
    finally:
        hidden.rename(moved)
    extract(target, proposer, tmp_path / "store", SETTINGS, executor=cluster)  # goes on with what is missing
    assert len(BagStore(tmp_path / "store")) == len(target)


def test_a_task_that_no_machine_has_the_cores_for_does_not_wait_for_ever(cluster: Cluster, tmp_path: Path) -> None:
    torch.set_num_threads(2)
    try:
        with pytest.raises(InputError, match=r"no machine of the cluster has 2 cores.*set OMP_NUM_THREADS=1$"):
            cluster.map(Visits(tmp_path), [1, 2])
    finally:
        torch.set_num_threads(1)


def test_without_ray_or_a_cluster_the_error_is_one_sentence(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: (_ for _ in ()).throw(ConnectionError("no answer\nmore")))
    with pytest.raises(InputError, match=r"^the cluster 'host:1' does not answer \(no answer\); start one with"):
        connect("host:1")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"Ray, which is not installed: pip install 'pairloc\[cluster\]'"):
        connect("auto")


def test_a_run_on_a_cluster_writes_the_boxes_of_a_run_without_one(nodes: Any, tmp_path: Path) -> None:
    call("scenes", "--out", tmp_path / "scenes", "--source-images", 1, "--target-images", 8)
    images, tags = tmp_path / "scenes" / "images", tmp_path / "scenes" / "target_tags.csv"
    for name, more in (("alone", ()), ("shared", ("--cluster", nodes.address))):
        assert call("localize", images, "--tags", tags, "--out", tmp_path / name, *more).status == 0
    for name in ("boxes.json", "full/explanations.json"):
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "shared" / name).read_bytes()
    again = call(
        "localize", images, "--tags", tags, "--out", tmp_path / "shared"
    ).text  # finished: where does not matter
    assert "finding candidate boxes" not in again
