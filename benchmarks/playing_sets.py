"""Cut the sets of images that evidence is learned on: source classes of the COCO protocol that play the target.

    .venv/bin/python benchmarks/playing_sets.py COCO OUT
    pairloc run OUT/draw-1/run.toml --out OUT/draw-1/run        (first every draw, then the other folders)

COCO holds train2017/, val2017/ and their instances_*.json. OUT gets folders with a run.toml each:

draw-N    a quarter of the 63 source classes plays; a proposer is trained on 20,000 images without them. Images of
          train2017 that show playing classes alone (clean), images of val2017 and of train2017 that show them among
          others (cluttered, listed in cluttered.txt), none with a target class
plain-N   objects of that draw's clean images on a plain ground, for the weights of that draw
known     images of val2017 with tags that the weights of draw 1 were taught
scenes    generated scenes, which are unlike the source, for the weights of draw 1
textures  patches of a texture on another one, likewise
known-63  the other images of val2017 without target classes, for the packaged weights: to evaluate, not to learn
plain     objects of the 17 target classes on a plain ground, for the packaged weights: to evaluate, not to learn
"""

import argparse
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pairloc.boxes import Bools
from pairloc.curation.scenes import write_scenes
from pairloc.curation.splits import COCO17, Annotated, Split, merge, restrict
from pairloc.datasets import dataset as ds
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.formats.reading import read_annotated
from pairloc.io import write_bytes, write_text
from pairloc.settings import SceneSettings

DRAWS, SOURCE_IMAGES, CLEAN_OF_CLASS, CLUTTERED_OF_CLASS = 4, 20_000, 120, 40
PLAIN_OF_CLASS, KNOWN, SCENES, TEXTURES = 12, 800, 200, 100
SIDE = 256  # of generated images, in pixels
DATA = """methods = ["warm-up-unary"]
{first}
[data]
target = "{folder}/target_tags.csv"
target_images = "{images}"
truth = "{folder}/target_truth.json"
"""
LEARN = """source = "{folder}/source.json"
source_images = "{images}"
[proposer]
batch = 64
crop = 0.6
epochs = 3
held_out = 0.25
[localization.unary]
combination = "mixed"
"""
Random = np.random.Generator
Pixels = npt.NDArray[np.uint8]


def write_run(folder: Path, images: Path, first: str, more: str = "") -> None:
    content = (DATA + more).format(first=first, folder=folder.resolve(), images=images.resolve())
    write_text(folder / "run.toml", content)


def write_target(folder: Path, target: Annotated, weights: str) -> None:
    """Write a target for weights that were learned before."""
    empty = target[1].where(np.zeros(len(target[1]), dtype=np.bool_))
    Split((target[0].subset([]), empty), target).write(folder)
    assert target[0].folder is not None
    write_run(folder, target[0].folder, f'weights = "{weights}"')
    print(f"{folder}: {len(target[0])} images, {len(target[0].classes)} classes")


def drawn(dataset: Dataset, candidates: npt.NDArray[Any], most: int, classes: Sequence[int] | None = None) -> list[int]:
    """Draw images until every class, or every one of `classes`, has `most` of them, or all there are."""
    count: Counter[int] = Counter()
    chosen = []
    for index in np.random.default_rng(0).permutation(candidates).tolist():
        tags = set(dataset.tags[index]) & set(range(len(dataset.classes)) if classes is None else classes)
        if any(count[label] < most for label in tags):
            chosen.append(index)
            count.update(tags)
    return chosen


def on_plain_ground(image: Image.Image, box: Sequence[float], random: Random) -> tuple[Image.Image, list[float]]:
    """Cut an object out and paste it somewhere on a plain ground; return the image and the box of the object.

    The corners of the box are rounded, more or less, since objects seldom fill them.
    """
    part = image.crop(tuple(round(side) for side in box))  # type: ignore[arg-type]
    scale = random.uniform(0.35, 0.85) * SIDE / max(part.size)
    width, height = (max(8, round(side * scale)) for side in part.size)
    part = part.resize((width, height), Image.Resampling.BICUBIC)
    x, y = int(random.integers(SIDE - width + 1)), int(random.integers(SIDE - height + 1))
    ground = random.integers(0, 256, 3) if random.random() < 0.5 else np.full(3, random.integers(160, 256))
    pixels = ground + random.normal(0, random.uniform(0, 4), (SIDE, SIDE, 3))
    canvas = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    column, row = (np.abs((np.arange(n) + 0.5) / n * 2 - 1) for n in (width, height))
    power = random.uniform(2.5, 12)
    inside = (row[:, None] ** power + column**power - 1) * min(width, height) / power
    canvas.paste(part, (x, y), Image.fromarray(((0.5 - inside).clip(0, 1) * 255).astype(np.uint8)))
    return canvas, [x, y, x + width, y + height]


def patch_of_texture(label: int, random: Random) -> tuple[Image.Image, list[float]]:
    """Draw a patch of one of four textures on another texture; return the image and the box of the patch."""
    ground, patch = texture(int(random.integers(4, 8)), random), texture(label, random)
    width, height = random.integers(SIDE // 8, SIDE // 3, 2).tolist()
    x, y = int(random.integers(SIDE - width)), int(random.integers(SIDE - height))
    ground[y : y + height, x : x + width] = patch[:height, :width]
    return Image.fromarray(ground), [x, y, x + width, y + height]


def texture(kind: int, random: Random) -> Pixels:
    """Waves, checks, stripes or noise in two colours: (SIDE, SIDE, 3); odd multiples of a kind are coarser."""
    y, x = np.mgrid[:SIDE, :SIDE] * (0.35 if kind < 4 else 0.12) + random.uniform(0, 6, (2, 1, 1))
    turn = random.uniform(0, np.pi)
    u, v = np.cos(turn) * x - np.sin(turn) * y, np.sin(turn) * x + np.cos(turn) * y
    noise = random.random((SIDE // 4 + 1, SIDE // 4 + 1)).repeat(4, 0).repeat(4, 1)[:SIDE, :SIDE]
    share = (np.sin(u + np.sin(v)), np.sign(np.sin(u) * np.sin(v)), np.sign(np.sin(u)), 2 * noise - 1)[kind % 4]
    colours = random.integers(0, 256, (2, 3))
    pixels: Pixels = (colours[0] + (colours[1] - colours[0]) * (share[..., None] + 1) / 2).astype(np.uint8)
    return pixels


def write_images(
    folder: Path, made: Sequence[tuple[Image.Image, list[float], int]], classes: Sequence[str], weights: str
) -> None:
    """Write images of one object each, their tags and boxes."""
    images = []
    for number, (image, _, _) in enumerate(made, start=1):
        stream = io.BytesIO()
        image.save(stream, "WEBP", quality=80)
        images.append(ds.Image(number, f"{number:05d}.webp", (SIDE, SIDE)))
        write_bytes(folder / "images" / images[-1].file, stream.getvalue())
    labels = np.array([label for _, _, label in made])
    boxes = np.array([box for _, box, _ in made], dtype=np.float64)
    dataset = Dataset(
        tuple(images), tuple(classes), tuple((label,) for label in labels.tolist()), folder=folder / "images"
    )
    truth = GroundTruth(np.arange(len(made)), labels, boxes, np.zeros(len(made), dtype=np.bool_))
    write_target(folder, (dataset, truth), weights)


def write_plain(folder: Path, annotated: Annotated, clean: Bools, labels: Sequence[int], weights: str) -> None:
    """Write objects of some classes on a plain ground, from images that show a single object."""
    dataset, truth = annotated
    random, count = np.random.default_rng(0), Counter[int]()
    boxes_of = np.bincount(truth.image, minlength=len(dataset))
    sides = (truth.boxes[:, 2:] - truth.boxes[:, :2]).min(axis=1)
    fits = clean[truth.image] & (boxes_of[truth.image] == 1) & ~truth.ignored & (sides >= 40)
    made = []
    for row in random.permutation(np.flatnonzero(fits)).tolist():
        label = int(truth.label[row])
        if label in labels and count[label] < PLAIN_OF_CLASS:
            count[label] += 1
            with Image.open(dataset.path(int(truth.image[row]))) as image:
                made.append(
                    (*on_plain_ground(image.convert("RGB"), truth.boxes[row].tolist(), random), labels.index(label))
                )
    write_images(folder, made, [dataset.classes[label] for label in labels], weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("coco", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    parts: list[Annotated] = [
        read_annotated(options.coco / f"instances_{part}.json", images=options.coco / part)
        for part in ("train2017", "val2017")
    ]
    dataset, truth = merge(parts)
    random, is_train = np.random.default_rng(0), np.arange(len(dataset)) < len(parts[0][0])
    names = [name for name in dataset.classes if name not in COCO17]
    shuffled = random.permutation(names).tolist()

    def shows(labels: Sequence[int]) -> Bools:
        return np.array([bool(set(tags) & set(labels)) for tags in dataset.tags])

    def labels_of(chosen: Sequence[str]) -> list[int]:
        return [label for label, name in enumerate(dataset.classes) if name in chosen]

    has_target, has_source = shows(labels_of(COCO17)), shows(labels_of(names))
    pool = np.zeros(len(dataset), dtype=np.bool_)
    pool[random.permutation(np.flatnonzero(is_train & has_source))[:SOURCE_IMAGES]] = True
    for draw in range(DRAWS):
        playing = labels_of(shuffled[draw::DRAWS])
        taught = labels_of([name for name in names if name not in shuffled[draw::DRAWS]])
        shown, among_others = shows(playing), shows(taught) | has_target
        alone = is_train & shown & ~among_others
        clean = drawn(dataset, np.flatnonzero(alone), CLEAN_OF_CLASS, playing)
        mixed = np.flatnonzero(is_train & shown & among_others & ~has_target & ~pool)
        mask = ~is_train & shown & ~has_target
        mask[[*clean, *drawn(dataset, mixed, CLUTTERED_OF_CLASS, playing)]] = True
        source = restrict(dataset, truth, pool & shows(taught) & ~mask, taught)
        folder = options.out / f"draw-{draw + 1}"
        Split(source, restrict(dataset, truth, mask, playing)).write(folder)
        cluttered = [dataset.images[index].file for index in np.flatnonzero(mask & among_others)]
        write_text(folder / "cluttered.txt", "".join(f"{file}\n" for file in cluttered))
        write_run(folder, options.coco, "calibrate = false", LEARN)
        print(f"{folder}: {', '.join(dataset.classes[label] for label in playing)}; {int(mask.sum())} images")
        weights = f"../draw-{draw + 1}/run"
        write_plain(options.out / f"plain-{draw + 1}", (dataset, truth), alone, playing, weights)
        if draw == 0:
            known = np.zeros(len(dataset), dtype=np.bool_)
            known[random.permutation(np.flatnonzero(~is_train & shows(taught) & ~has_target))[:KNOWN]] = True
            write_target(options.out / "known", restrict(dataset, truth, known, taught), weights)
            others = ~is_train & shows(labels_of(names)) & ~has_target & ~known
            write_target(options.out / "known-63", restrict(dataset, truth, others, labels_of(names)), "coco63")
    targets = labels_of(COCO17)
    write_plain(options.out / "plain", (dataset, truth), is_train & shows(targets) & ~has_source, targets, "coco63")
    made = [(*patch_of_texture(number % 4, random), number % 4) for number in range(TEXTURES)]
    write_images(options.out / "textures", made, ("waves", "checks", "stripes", "noise"), "../draw-1/run")
    settings = SceneSettings(source_images=1, target_images=SCENES)
    scenes = write_scenes(options.out / "scenes", settings)
    write_target(options.out / "scenes", scenes.target, "../draw-1/run")


if __name__ == "__main__":
    main()
