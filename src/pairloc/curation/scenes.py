"""Generated scenes: a built-in data set that needs no download and no licence.

A source image shows objects of source classes. A target image shows one or two target classes among source-class
distractors, so that the most object-like box is often wrong: only the object that recurs under a tag is right.
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
_ALL_CLASSES = SOURCE | TARGET
_SUPERSAMPLING = 2  # scenes are drawn larger by this factor and scaled down, which smooths their edges


@dataclass(frozen=True)
class Scene:
    """An image and its visible objects."""

    image: Image.Image
    names: tuple[str, ...]  # (n,) class names
    boxes: Floats  # (n, 4) around the visible pixels


def write_scenes(
    folder: Path,
    settings: SceneSettings,
    track: Callable[[Iterable[int], int], Iterable[int]] = lambda items, total: items,
) -> Split:
    """Write `images/`, `source.json`, `target_tags.csv` and `target_truth.json`, like `pairloc split`.

    `track` may wrap the loop over images in a progress bar.
    """
    images = folder / "images"
    count = settings.source_images + settings.target_images
    files, scenes = [], []
    for index in track(range(count), count):
        is_target = index >= settings.source_images
        scene = draw_scene(settings, index, target=is_target)
        files.append(f"{'target' if is_target else 'source'}_{index + 1:06d}.jpg")
        write_bytes(images / files[-1], _jpeg(scene.image))
        scenes.append((scene.names, scene.boxes))
    first_target = settings.source_images
    split = Split(
        source=_annotated(scenes[:first_target], files[:first_target], 1, tuple(SOURCE), settings.size, images),
        target=_annotated(
            scenes[first_target:], files[first_target:], first_target + 1, tuple(TARGET), settings.size, images
        ),
    )
    split.write(folder)
    return split


def _jpeg(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=92)
    return stream.getvalue()


def draw_scene(settings: SceneSettings, index: int, *, target: bool) -> Scene:
    """Draw one scene; it depends on the seed and its index, not on the scenes drawn before."""
    r = np.random.default_rng([settings.seed, index])
    side = settings.size * _SUPERSAMPLING
    canvas = _background(r, side)
    visible = np.zeros((side, side), dtype=np.int16)  # number of the object visible at each pixel; 0 is background
    painted = []
    for number, name in enumerate(_choose_classes(r, target), start=1):
        pixel_count = _paint(canvas, visible, name, number, r)
        painted.append((name, pixel_count))
    if r.random() < 0.25:
        _occlude(canvas, visible, r)
    image = _develop(canvas, r)
    names, boxes = [], []
    for number, (name, pixel_count) in enumerate(painted, start=1):
        rows, columns = np.nonzero(visible == number)
        if len(rows) >= 0.35 * pixel_count:  # objects that are mostly hidden do not count
            names.append(name)
            boxes.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
    return Scene(image, tuple(names), np.array(boxes, dtype=np.float64).reshape(-1, 4) / _SUPERSAMPLING)


def _choose_classes(r: Rng, target: bool) -> list[str]:
    """The classes to paint, from back to front; the first target class comes last, so other objects never hide it."""
    if not target:
        return [str(name) for name in r.choice(list(SOURCE), size=r.integers(2, 5))]
    targets = list(r.choice(list(TARGET), size=1 + (r.random() < 0.2), replace=False))
    if r.random() < 0.25:
        targets.append(targets[0])
    distractors = list(r.choice(list(SOURCE), size=r.integers(1, 4)))
    return [str(name) for name in (*distractors, *reversed(targets))]


def _paint(canvas: Pixels, visible: npt.NDArray[np.int16], name: str, number: int, r: Rng) -> int:
    """Paint an object at the one of six random positions where it hides least; return the number of its pixels."""
    side = len(visible)
    layer, mask = _render(name, int(side * r.uniform(0.22, 0.55)), r)
    height, width = mask.shape
    positions = [(int(r.integers(0, side - height + 1)), int(r.integers(0, side - width + 1))) for _ in range(6)]
    hidden = [int((visible[y : y + height, x : x + width][mask] > 0).sum()) for y, x in positions]
    y, x = positions[int(np.argmin(hidden))]
    canvas[y : y + height, x : x + width][mask] = layer[mask]
    visible[y : y + height, x : x + width][mask] = number
    return int(mask.sum())


def _render(name: str, side: int, r: Rng) -> tuple[Pixels, npt.NDArray[np.bool_]]:
    """Draw an object with random pose, colours and texture: pixels (h, w, 3), mask (h, w)."""
    parts = _ALL_CLASSES[name](r)
    angle = np.radians(r.normal(0, 14))
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    stretch = np.array([[r.uniform(0.8, 1.2) * r.choice([-1, 1]), r.uniform(-0.2, 0.2)], [0, r.uniform(0.8, 1.2)]])
    transformed = [(ink, points @ (rotation @ stretch).T) for ink, points in parts]
    all_points = np.concatenate([points for _, points in transformed])
    low, extent = all_points.min(axis=0), np.ptp(all_points, axis=0)
    scale = (side - 1) / extent.max()
    width, height = (np.ceil(extent * scale).astype(int) + 1).tolist()
    inks = _inks(r)
    layer, silhouette = Image.new("RGB", (width, height)), Image.new("1", (width, height))
    layer_draw, mask_draw = ImageDraw.Draw(layer), ImageDraw.Draw(silhouette)
    outline = _shade(inks[0], 0.45) if r.random() < 0.6 else None
    for ink, points in transformed:
        corners = [tuple(corner) for corner in ((points - low) * scale).tolist()]
        layer_draw.polygon(corners, fill=inks[ink], outline=outline)
        mask_draw.polygon(corners, fill=1, outline=1)
    return _texture(np.asarray(layer), r), np.asarray(silhouette)


def _inks(r: Rng) -> list[Colour]:
    """Main, second and accent colour, with different hues."""
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
    """Shade an object with a gradient and, on some, stripes or dots: (h, w, 3) -> (h, w, 3)."""
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
    """Soft patches of two colours, with clutter that is not an object: shards, strokes and arcs."""
    colours = np.array([_colour(r.random(), r.uniform(0.05, 0.5), r.uniform(0.35, 0.9)) for _ in range(2)])
    cells = int(r.integers(3, 9))
    blend = r.random((cells, cells, 1))
    patches = Image.fromarray((colours[0] * blend + colours[1] * (1 - blend)).astype(np.uint8))
    canvas = patches.resize((side, side), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(canvas)
    for _ in range(r.integers(6, 16)):
        centre, radius = r.uniform(0, side, 2), side * r.uniform(0.03, 0.16)
        colour = _colour(r.random(), r.uniform(0.1, 0.7), r.uniform(0.3, 0.95))
        match r.integers(0, 4):
            case 0:
                points = centre + r.normal(0, radius, (r.integers(3, 6), 2))
            case 1:
                points = centre + np.array([[0, 0], [1, 0.1], [1, 0.2], [0, 0.1]]) @ r.normal(0, 2 * radius, (2, 2))
            case 2:
                start = r.uniform(0, 360)
                points = centre + radius * band(0, 0, 1, r.uniform(0.6, 0.9), start, start + r.uniform(60, 220))
            case _:
                points = centre + radius * ellipse(0, 0, 0.5, r.uniform(0.1, 0.5)) @ r.normal(0, 1, (2, 2))
        draw.polygon([tuple(corner) for corner in points.tolist()], fill=colour)
    return np.array(canvas)


def _occlude(canvas: Pixels, visible: npt.NDArray[np.int16], r: Rng) -> None:
    """Paint a bar, such as a pole or a rail, across the whole image and over all objects."""
    side, width = len(visible), int(len(visible) * r.uniform(0.02, 0.06))
    start = int(r.integers(0, side - width))
    bar = (slice(None), slice(start, start + width)) if r.random() < 0.5 else (slice(start, start + width), slice(None))
    canvas[bar] = _colour(r.random(), r.uniform(0, 0.5), r.uniform(0.2, 0.9))
    visible[bar] = 0


def _develop(canvas: Pixels, r: Rng) -> Image.Image:
    """Simulate a camera: scale down, change contrast and brightness, add noise."""
    image = np.asarray(Image.fromarray(canvas).reduce(_SUPERSAMPLING), dtype=np.float64)
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
    """The scenes as a data set with only these classes; boxes of other classes are dropped."""
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
    ids = tuple(list(_ALL_CLASSES).index(name) + 1 for name in classes)
    dataset = ds.Dataset(images, classes, tuple(tuple(sorted(entry)) for entry in tags), ids, folder)
    return dataset, GroundTruth(image, label, table[:, 2:], np.zeros(len(table), dtype=np.bool_))
