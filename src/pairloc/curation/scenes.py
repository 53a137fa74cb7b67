"""Generated scenes: the embedded data set, which needs no download and no licence.

A source image shows objects of source classes. A target image shows one or two target classes among source-class
distractors, so that the most object-like box is often the wrong one: only what recurs under a tag tells them apart.
"""

import colorsys
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from pairloc.boxes import Floats
from pairloc.curation.drawings import SOURCE, TARGET, Rng, band, ellipse
from pairloc.curation.splits import Split
from pairloc.datasets import dataset as ds
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.io import write_bytes
from pairloc.settings import SceneSettings

Pixels = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]
_ALL = SOURCE | TARGET
_FINE = 2  # scenes are drawn this many times larger and scaled down, which smooths their edges


@dataclass(frozen=True)
class Scene:
    """An image and what is to be seen in it."""

    image: Image.Image
    names: tuple[str, ...]  # (n,) classes
    boxes: Floats  # (n, 4) around what is visible


def write_scenes(
    folder: Path,
    settings: SceneSettings,
    track: Callable[[Iterable[int], int], Iterable[int]] = lambda items, total: items,
) -> Split:
    """Write `images/`, `source.json`, `target_tags.csv` and `target_truth.json`, as `pairloc split` would."""
    images = folder / "images"
    count = settings.source_images + settings.target_images
    files, scenes = [], []
    for index in track(range(count), count):
        is_target = index >= settings.source_images
        scene = draw_scene(settings, index, target=is_target)
        files.append(f"{'target' if is_target else 'source'}_{index + 1:06d}.jpg")
        write_bytes(images / files[-1], _jpeg(scene.image))
        scenes.append((scene.names, scene.boxes))
    cut = settings.source_images
    split = Split(
        source=_annotated(scenes[:cut], files[:cut], 1, tuple(SOURCE), settings.size, images),
        target=_annotated(scenes[cut:], files[cut:], cut + 1, tuple(TARGET), settings.size, images),
    )
    split.write(folder)
    return split


def _jpeg(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=92)
    return stream.getvalue()


def draw_scene(settings: SceneSettings, index: int, *, target: bool) -> Scene:
    """One scene; it depends on the seed and its index alone."""
    r = np.random.default_rng([settings.seed, index])
    side = settings.size * _FINE
    canvas = _background(r, side)
    owner = np.zeros((side, side), dtype=np.int16)  # which object is seen at a pixel, counted from 1
    painted = []
    for number, name in enumerate(_cast(r, target), start=1):
        pixels = _place(canvas, owner, name, number, r)
        painted.append((name, pixels))
    if r.random() < 0.25:
        _occlude(canvas, owner, r)
    image = _develop(canvas, r)
    names, boxes = [], []
    for number, (name, pixels) in enumerate(painted, start=1):
        rows, columns = np.nonzero(owner == number)
        if len(rows) >= 0.35 * pixels:
            names.append(name)
            boxes.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
    kept = np.array(boxes, dtype=np.float64).reshape(-1, 4) / _FINE
    return Scene(image, tuple(names), kept)


def _cast(r: Rng, target: bool) -> list[str]:
    """The classes to paint, from back to front; a target image's first target class is never hidden for good."""
    if not target:
        return [str(name) for name in r.choice(list(SOURCE), size=r.integers(2, 5))]
    actors = list(r.choice(list(TARGET), size=1 + (r.random() < 0.2), replace=False))
    if r.random() < 0.25:
        actors.append(actors[0])
    extras = list(r.choice(list(SOURCE), size=r.integers(1, 4)))
    return [str(name) for name in (*extras, *reversed(actors))]


def _place(canvas: Pixels, owner: npt.NDArray[np.int16], name: str, number: int, r: Rng) -> int:
    """Paint an object where it hides least of the others, of a few places tried; the number of its pixels."""
    side = len(owner)
    layer, mask = _render(name, int(side * r.uniform(0.22, 0.55)), r)
    height, width = mask.shape
    tries = [(int(r.integers(0, side - height + 1)), int(r.integers(0, side - width + 1))) for _ in range(6)]
    hidden = [int((owner[y : y + height, x : x + width][mask] > 0).sum()) for y, x in tries]
    y, x = tries[int(np.argmin(hidden))]
    canvas[y : y + height, x : x + width][mask] = layer[mask]
    owner[y : y + height, x : x + width][mask] = number
    return int(mask.sum())


def _render(name: str, side: int, r: Rng) -> tuple[Pixels, npt.NDArray[np.bool_]]:
    """An object in a pose, colours and texture of its own: pixels (h, w, 3), mask (h, w)."""
    parts = _ALL[name](r)
    angle = np.radians(r.normal(0, 14))
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    stretch = np.array([[r.uniform(0.8, 1.2) * r.choice([-1, 1]), r.uniform(-0.2, 0.2)], [0, r.uniform(0.8, 1.2)]])
    turned = [(ink, points @ (rotation @ stretch).T) for ink, points in parts]
    everything = np.concatenate([points for _, points in turned])
    low, extent = everything.min(axis=0), np.ptp(everything, axis=0)
    scale = (side - 1) / extent.max()
    width, height = (np.ceil(extent * scale).astype(int) + 1).tolist()
    inks = _inks(r)
    layer, silhouette = Image.new("RGB", (width, height)), Image.new("1", (width, height))
    painter, cutter = ImageDraw.Draw(layer), ImageDraw.Draw(silhouette)
    outline = _shade(inks[0], 0.45) if r.random() < 0.6 else None
    for ink, points in turned:
        corners = [tuple(corner) for corner in ((points - low) * scale).tolist()]
        painter.polygon(corners, fill=inks[ink], outline=outline)
        cutter.polygon(corners, fill=1, outline=1)
    return _texture(np.asarray(layer), r), np.asarray(silhouette)


def _inks(r: Rng) -> list[Colour]:
    """Main, second and accent colour, apart in hue."""
    hue = r.random()
    hues = [hue, hue + r.uniform(0.15, 0.5), hue + r.uniform(0.5, 0.85)]
    values = [r.uniform(0.55, 0.95), r.uniform(0.25, 0.8), r.uniform(0.7, 1.0)]
    return [_colour(h, r.uniform(0.35, 0.9), v) for h, v in zip(hues, values, strict=True)]


def _colour(hue: float, saturation: float, value: float) -> Colour:
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, saturation, value)
    return int(255 * red), int(255 * green), int(255 * blue)


def _shade(colour: Colour, factor: float) -> Colour:
    red, green, blue = (int(channel * factor) for channel in colour)
    return red, green, blue


def _texture(pixels: Pixels, r: Rng) -> Pixels:
    """Light that falls off across the object and, on some, stripes or dots: (h, w, 3) -> (h, w, 3)."""
    height, width = pixels.shape[:2]
    y, x = np.mgrid[:height, :width]
    angle, period = r.uniform(0, np.pi), r.uniform(0.12, 0.3) * max(height, width)
    along = (x * np.cos(angle) + y * np.sin(angle)) / period
    across = (y * np.cos(angle) - x * np.sin(angle)) / period
    light = 1 + r.uniform(-0.3, 0.3) * (x / width - 0.5) + r.uniform(-0.3, 0.3) * (y / height - 0.5)
    pattern = r.random()
    if pattern < 0.2:
        light *= 1 - 0.3 * (along % 1 < 0.4)
    elif pattern < 0.35:
        light *= 1 - 0.35 * ((along % 1 - 0.5) ** 2 + (across % 1 - 0.5) ** 2 < 0.08)
    lit: Pixels = (pixels * light[..., None]).clip(0, 255).astype(np.uint8)
    return lit


def _background(r: Rng, side: int) -> Pixels:
    """Soft patches of two colours, and clutter that is no object: shards, strokes and arcs."""
    ground = np.array([_colour(r.random(), r.uniform(0.05, 0.5), r.uniform(0.35, 0.9)) for _ in range(2)])
    cells = int(r.integers(3, 9))
    blend = r.random((cells, cells, 1))
    patches = Image.fromarray((ground[0] * blend + ground[1] * (1 - blend)).astype(np.uint8))
    canvas = patches.resize((side, side), Image.Resampling.BICUBIC)
    painter = ImageDraw.Draw(canvas)
    for _ in range(r.integers(6, 16)):
        centre, reach = r.uniform(0, side, 2), side * r.uniform(0.03, 0.16)
        colour = _colour(r.random(), r.uniform(0.1, 0.7), r.uniform(0.3, 0.95))
        match r.integers(0, 4):
            case 0:
                points = centre + r.normal(0, reach, (r.integers(3, 6), 2))
            case 1:
                points = centre + np.array([[0, 0], [1, 0.1], [1, 0.2], [0, 0.1]]) @ r.normal(0, 2 * reach, (2, 2))
            case 2:
                start = r.uniform(0, 360)
                points = centre + reach * band(0, 0, 1, r.uniform(0.6, 0.9), start, start + r.uniform(60, 220))
            case _:
                points = centre + reach * ellipse(0, 0, 0.5, r.uniform(0.1, 0.5)) @ r.normal(0, 1, (2, 2))
        painter.polygon([tuple(corner) for corner in points.tolist()], fill=colour)
    return np.array(canvas)


def _occlude(canvas: Pixels, owner: npt.NDArray[np.int16], r: Rng) -> None:
    """A bar, such as a pole or a rail, across the whole image and everything in it."""
    side, wide = len(owner), int(len(owner) * r.uniform(0.02, 0.06))
    start = int(r.integers(0, side - wide))
    bar = (slice(None), slice(start, start + wide)) if r.random() < 0.5 else (slice(start, start + wide), slice(None))
    canvas[bar] = _colour(r.random(), r.uniform(0, 0.5), r.uniform(0.2, 0.9))
    owner[bar] = 0


def _develop(canvas: Pixels, r: Rng) -> Image.Image:
    """The camera: scaled down, with an exposure and grain of its own."""
    image = np.asarray(Image.fromarray(canvas).reduce(_FINE), dtype=np.float64)
    image = (image - 128) * r.uniform(0.75, 1.1) + 128 + r.uniform(-20, 20)
    return Image.fromarray((image + r.normal(0, 5, image.shape)).clip(0, 255).astype(np.uint8))


def _annotated(
    scenes: list[tuple[tuple[str, ...], Floats]],
    files: list[str],
    first_id: int,
    classes: tuple[str, ...],
    size: int,
    folder: Path,
) -> tuple[ds.Dataset, GroundTruth]:
    """The scenes as a data set that knows of these classes alone."""
    rows = [
        (index, classes.index(name), *box)
        for index, (names, boxes) in enumerate(scenes)
        for name, box in zip(names, boxes.tolist(), strict=True)
        if name in classes
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, 6)
    image, label = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
    tags: list[set[int]] = [set() for _ in scenes]
    for index, tag in zip(image.tolist(), label.tolist(), strict=True):
        tags[index].add(tag)
    images = tuple(ds.Image(first_id + index, file, (size, size)) for index, file in enumerate(files))
    ids = tuple(list(_ALL).index(name) + 1 for name in classes)
    dataset = ds.Dataset(images, classes, tuple(tuple(sorted(entry)) for entry in tags), ids, folder)
    return dataset, GroundTruth(image, label, table[:, 2:], np.zeros(len(table), dtype=np.bool_))
