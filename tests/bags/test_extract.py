import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pairloc.bags.extract import extract
from pairloc.bags.store import BagStore
from pairloc.detector.reading import ImageBatch
from pairloc.errors import InputError
from pairloc.formats import read
from pairloc.settings import ExtractSettings

SETTINGS = ExtractSettings(proposals=8, shard=3, batch=2, class_features="none")


def files(path: Path) -> dict[str, bytes]:
    return {f.relative_to(path).as_posix(): f.read_bytes() for f in sorted(path.rglob("*")) if f.is_file()}


@pytest.fixture(scope="module")
def complete(scenes: Path, proposer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("stores") / "complete"
    extract(read(scenes / "target_tags.csv"), proposer, store, SETTINGS)
    return store


def test_bags_contain_boxes_features_tags_and_the_whole_image(complete: Path, scenes: Path) -> None:
    store, target = BagStore(complete), read(scenes / "target_tags.csv")
    assert store.dataset.tags == target.tags
    assert store.info()["transfer d"] == 32
    for index in range(len(store)):
        bag = store.bag(index)
        assert 1 <= len(bag.boxes) <= 9
        assert bag.size == (64, 64)
        np.testing.assert_array_equal(bag.boxes[-1], [0, 0, 64, 64])
        assert np.isfinite(bag.objectness).all()
        assert bag.transfer.shape == (len(bag.boxes), 32)


def test_features_in_bfloat16_agree_with_those_in_single_precision(
    scenes: Path, proposer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = read(scenes / "target_tags.csv")
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_bf16": True})
    stores = []
    for precision in ("single", "auto"):
        extract(target, proposer, tmp_path / precision, SETTINGS.model_copy(update={"precision": precision}))
        stores.append(BagStore(tmp_path / precision))
    plain, fast = ([store.bag(index) for index in range(len(target))] for store in stores)
    for exact, rounded in zip(plain, fast, strict=True):  # the whole image, whose box is the same
        a, b = exact.transfer[-1].astype(float), rounded.transfer[-1].astype(float)
        assert not np.array_equal(a, b)
        assert np.linalg.norm(a - b) < 0.05 * np.linalg.norm(a)
        assert abs(float(exact.objectness[-1]) - float(rounded.objectness[-1])) < 0.2


def test_a_resumed_extraction_writes_the_same_bytes(
    scenes: Path, proposer: Path, complete: Path, tmp_path: Path
) -> None:
    target = read(scenes / "target_tags.csv")
    for stop in range(4):  # interrupt before a batch
        store = tmp_path / f"boundary{stop}"

        def interrupt(batches: Iterable[ImageBatch], images: int, stop: int = stop) -> Iterator[ImageBatch]:
            assert images > 0
            for number, batch in enumerate(batches):
                if number == stop:
                    raise KeyboardInterrupt
                yield batch

        with pytest.raises(KeyboardInterrupt):
            extract(target, proposer, store, SETTINGS, track=interrupt)
        extract(target, proposer, store, SETTINGS)
        assert files(store) == files(complete)


def test_a_process_killed_in_the_middle_of_a_shard_can_be_resumed(
    scenes: Path, proposer: Path, complete: Path, tmp_path: Path
) -> None:
    store = tmp_path / "middle"
    code = (
        "import os, signal, sys; from pathlib import Path; import numpy as np\n"
        "from pairloc.bags.extract import extract; from pairloc.settings import ExtractSettings\n"
        "from pairloc.formats import read\n"
        "real, count = np.save, [0]\n"
        "def save(file, array, **options):\n"
        "    real(file, array, **options); count[0] += 1\n"
        "    if count[0] == 9: os.kill(os.getpid(), signal.SIGKILL)\n"
        "np.save = save\n"
        "settings = ExtractSettings.model_validate_json(sys.argv[4])\n"
        "extract(read(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), settings)\n"
    )
    arguments = [scenes / "target_tags.csv", proposer, store, SETTINGS.model_dump_json()]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    killed = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=False, env=environment)
    assert killed.returncode == -9
    with pytest.raises(InputError, match="is not finished"):
        BagStore(store)
    extract(read(scenes / "target_tags.csv"), proposer, store, SETTINGS)
    assert files(store) == files(complete)


def test_an_unreadable_image_is_an_error_or_is_skipped(scenes: Path, proposer: Path, tmp_path: Path) -> None:
    broken = tmp_path / "scenes"
    shutil.copytree(scenes, broken)
    (broken / "images" / "target_000024.jpg").write_text("not an image")
    target = read(broken / "target_tags.csv")
    with pytest.raises(InputError, match=r"target_000024.jpg: .*--unreadable skip"):
        extract(target, proposer, tmp_path / "a", SETTINGS)
    extract(target, proposer, tmp_path / "b", SETTINGS.model_copy(update={"unreadable": "skip"}))
    store = BagStore(tmp_path / "b")
    assert store.info()["unreadable images"] == 1
    index = [image.file for image in store.dataset.images].index("target_000024.jpg")
    assert len(store.bag(index).boxes) == 0
    assert store.bag(index).transfer.shape == (0, 32)


def test_a_store_of_another_proposer_is_refused(scenes: Path, proposer: Path, complete: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(proposer, other)
    content = bytearray((other / "proposer.safetensors").read_bytes())
    content[-1] ^= 1
    (other / "proposer.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="other images, settings or proposer"):
        extract(read(scenes / "target_tags.csv"), other, complete, SETTINGS)


def test_a_refused_extraction_writes_no_store(scenes: Path, proposer: Path, tmp_path: Path) -> None:
    target = read(scenes / "target_tags.csv")
    with pytest.raises(InputError, match="cannot be read"):
        extract(target, tmp_path / "none", tmp_path / "s", SETTINGS)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "training.safetensors").touch()
    with pytest.raises(InputError, match="begun: the training is not finished"):
        extract(target, tmp_path / "begun", tmp_path / "s", SETTINGS)
    with pytest.raises(InputError, match="no class features 'magic'"):
        extract(target, proposer, tmp_path / "s", SETTINGS.model_copy(update={"class_features": "magic"}))
    assert not (tmp_path / "s").exists()
