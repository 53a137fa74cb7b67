"""The objects of generated scenes: one function per class, which draws a random variant of its shape.

A drawing is a list of parts in painting order. A part is an ink (0 main, 1 second, 2 accent) and a polygon (n, 2) in
the square from -1 to 1, y downwards. Pose, size, colour, texture and occlusion vary in `scenes`.
"""

from collections.abc import Callable

import numpy as np

from pairloc.boxes import Floats

Part = tuple[int, Floats]
Drawing = list[Part]
Rng = np.random.Generator


def polygon(*points: tuple[float, float]) -> Floats:
    """A polygon by its corners: (n, 2)."""
    return np.array(points, dtype=np.float64)


def rectangle(x1: float, y1: float, x2: float, y2: float) -> Floats:
    """An axis-aligned rectangle: (4, 2)."""
    return polygon((x1, y1), (x2, y1), (x2, y2), (x1, y2))


def ellipse(x: float, y: float, rx: float, ry: float, start: float = 0, end: float = 360) -> Floats:
    """An ellipse with centre (x, y), or its arc between two angles in degrees, clockwise from the right: (28, 2)."""
    angles = np.radians(np.linspace(start, end, 28))
    return np.stack([x + rx * np.cos(angles), y + ry * np.sin(angles)], axis=1)


def band(x: float, y: float, outer: float, inner: float, start: float = 0, end: float = 360) -> Floats:
    """A ring between two radii, or an arc of it: (56, 2)."""
    return np.concatenate([ellipse(x, y, outer, outer, start, end), ellipse(x, y, inner, inner, end, start)])


def _house(r: Rng) -> Drawing:
    wall, eaves = r.uniform(0.6, 0.85), r.uniform(-0.25, 0.1)
    parts = [
        (0, rectangle(-wall, eaves, wall, 0.9)),
        (1, polygon((-wall - 0.12, eaves), (r.uniform(-0.3, 0.3), -0.95), (wall + 0.12, eaves))),
        (2, rectangle(-0.15, 0.35, 0.2, 0.9)),
    ]
    for x in (-0.45, 0.42)[: r.integers(1, 3)]:
        parts.append((2, rectangle(x - 0.12, eaves + 0.2, x + 0.12, eaves + 0.45)))
    return parts


def _tree(r: Rng) -> Drawing:
    parts = [(1, rectangle(-0.12, 0.2, 0.12, 0.95))]
    if r.random() < 0.5:
        return parts + [
            (0, polygon((-0.7 + d, 0.5 - 2 * d), (0, -0.3 - 2 * d), (0.7 - d, 0.5 - 2 * d))) for d in (0, 0.15, 0.3)
        ]
    blobs = [(r.uniform(-0.35, 0.35), r.uniform(-0.6, 0.1), r.uniform(0.35, 0.5)) for _ in range(5)]
    return parts + [(0, ellipse(x, y, s, s)) for x, y, s in blobs]


def _car(r: Rng) -> Drawing:
    roof, front = r.uniform(-0.45, -0.25), r.uniform(0.3, 0.6)
    return [
        (0, polygon((-0.6, 0.0), (-0.4, roof), (front - 0.15, roof), (front + 0.1, 0.0))),
        (2, polygon((-0.45, -0.03), (-0.32, roof + 0.1), (front - 0.2, roof + 0.1), (front - 0.05, -0.03))),
        (0, rectangle(-0.95, 0.0, 0.95, 0.35)),
        (1, ellipse(-0.5, 0.37, 0.22, 0.22)),
        (1, ellipse(0.5, 0.37, 0.22, 0.22)),
    ]


def _fish(r: Rng) -> Drawing:
    fat, tail = r.uniform(0.3, 0.5), r.uniform(0.3, 0.5)
    return [
        (1, polygon((0.4, 0.0), (0.95, -tail), (0.8, 0.0), (0.95, tail))),
        (1, polygon((-0.2, -fat + 0.05), (0.1, -fat - 0.3), (0.3, -fat + 0.15))),
        (0, ellipse(-0.15, 0.0, 0.7, fat)),
        (2, ellipse(-0.55, -0.08, 0.09, 0.09)),
    ]


def _flower(r: Rng) -> Drawing:
    petals, reach = int(r.integers(5, 9)), r.uniform(0.32, 0.42)
    angles = np.linspace(0, 2 * np.pi, petals, endpoint=False)
    parts = [(1, rectangle(-0.05, 0.0, 0.05, 0.95)), (1, ellipse(0.25, 0.65, 0.25, 0.09))]
    parts += [(0, ellipse(reach * np.cos(a), -0.4 + reach * np.sin(a), 0.22, 0.22)) for a in angles]
    return [*parts, (2, ellipse(0, -0.4, 0.2, 0.2))]


def _bottle(r: Rng) -> Drawing:
    wide, shoulder = r.uniform(0.26, 0.38), r.uniform(-0.35, -0.1)
    return [
        (0, polygon(
            (-wide, 0.95), (-wide, shoulder), (-0.11, shoulder - 0.25), (-0.11, -0.8),
            (0.11, -0.8), (0.11, shoulder - 0.25), (wide, shoulder), (wide, 0.95),
        )),
        (1, rectangle(-0.14, -0.95, 0.14, -0.78)),
        (2, rectangle(-wide, 0.15, wide, r.uniform(0.45, 0.7))),
    ]  # fmt: skip


def _chair(r: Rng) -> Drawing:
    seat, back = r.uniform(0.0, 0.2), r.uniform(0.4, 0.55)
    parts = [(1, rectangle(x, seat, x + 0.11, 0.95)) for x in (-0.55, 0.44)]
    parts += [(0, rectangle(-0.55, -0.95, -0.42, seat)), (0, rectangle(-0.6, seat, 0.6, seat + 0.16))]
    parts += [(0, rectangle(-0.5, -0.9, -0.5 + back, -0.45)), (1, rectangle(-0.5, -0.3, -0.5 + back, -0.15))]
    return parts


def _umbrella(r: Rng) -> Drawing:
    high = r.uniform(0.55, 0.8)
    parts = [(1, rectangle(-0.04, -0.5, 0.04, 0.75)), (1, band(0.13, 0.75, 0.17, 0.09, 0, 180))]
    parts.append((0, ellipse(0, 0.0, 0.95, high, 180, 360)))
    return [*parts, (2, polygon((-0.3, 0.0), (0.0, -high), (0.3, 0.0)))]


def _key(r: Rng) -> Drawing:
    bow, teeth = r.uniform(0.28, 0.36), int(r.integers(2, 4))
    parts = [(0, band(-0.6, 0, bow, bow * 0.5)), (0, rectangle(-0.35, -0.07, 0.95, 0.07))]
    return parts + [(1, rectangle(0.85 - 0.2 * i, 0.0, 0.95 - 0.2 * i, r.uniform(0.2, 0.35))) for i in range(teeth)]


def _mushroom(r: Rng) -> Drawing:
    cap, stem = r.uniform(0.7, 0.95), r.uniform(0.18, 0.3)
    parts = [
        (1, polygon((-stem, 0.0), (stem, 0.0), (stem + 0.08, 0.85), (-stem - 0.08, 0.85))),
        (0, ellipse(0, 0.05, cap, r.uniform(0.7, 0.95), 180, 360)),
    ]
    return parts + [(2, ellipse(x * cap, y, 0.11, 0.09)) for x, y in ((-0.55, -0.2), (0.1, -0.5), (0.5, -0.15))]


def _rocket(r: Rng) -> Drawing:
    wide = r.uniform(0.22, 0.34)
    return [
        (1, polygon((-wide, 0.2), (-0.65, 0.8), (-wide, 0.65))),
        (1, polygon((wide, 0.2), (0.65, 0.8), (wide, 0.65))),
        (2, polygon((-0.18, 0.65), (0.0, 0.98), (0.18, 0.65))),
        (0, polygon(
            (-wide, 0.7), (-wide, -0.35), (-wide * 0.6, -0.7), (0.0, -0.98),
            (wide * 0.6, -0.7), (wide, -0.35), (wide, 0.7),
        )),
        (2, ellipse(0, -0.25, wide * 0.5, wide * 0.5)),
    ]  # fmt: skip


def _clock(r: Rng) -> Drawing:
    hour, minute = r.uniform(0, 2 * np.pi, 2)
    parts = [(0, ellipse(0, 0, 0.9, 0.9)), (2, ellipse(0, 0, 0.72, 0.72))]
    for angle, long, wide in ((hour, 0.4, 0.07), (minute, 0.62, 0.05)):
        along, across = (
            np.array([np.cos(angle), np.sin(angle)]),
            np.array([-np.sin(angle), np.cos(angle)]) * wide,
        )
        parts.append((1, np.stack([-across, along * long, across])))
    if r.random() < 0.5:
        parts += [(1, ellipse(x, -0.85, 0.2, 0.14)) for x in (-0.5, 0.5)]
    return parts


def _cactus(r: Rng) -> Drawing:
    left, right = r.uniform(-0.2, 0.3, 2)
    parts = [(0, rectangle(-0.18, -0.85, 0.18, 0.6)), (0, ellipse(0, -0.85, 0.18, 0.13, 180, 360))]
    parts += [
        (0, rectangle(-0.6, left - 0.4, -0.42, left)),
        (0, rectangle(-0.6, left - 0.12, 0.0, left + 0.05)),
    ]
    parts += [
        (0, rectangle(0.42, right - 0.5, 0.6, right)),
        (0, rectangle(0.0, right - 0.12, 0.6, right + 0.05)),
    ]
    return [*parts, (1, polygon((-0.4, 0.5), (0.4, 0.5), (0.3, 0.95), (-0.3, 0.95)))]


def _ice_cream(r: Rng) -> Drawing:
    parts = [(1, polygon((-0.4, -0.1), (0.4, -0.1), (0.0, 0.95)))]
    scoops = [(-0.25, -0.2), (0.25, -0.2), (0.0, -0.55)] if r.random() < 0.6 else [(0.0, -0.25)]
    return parts + [(0 if i != 1 else 2, ellipse(x, y, 0.34, 0.3)) for i, (x, y) in enumerate(scoops)]


def _tent(r: Rng) -> Drawing:
    top, door = r.uniform(-0.8, -0.5), r.uniform(0.2, 0.35)
    return [
        (0, polygon((-0.95, 0.6), (-0.1, top), (0.6, 0.6))),
        (1, polygon((0.6, 0.6), (-0.1, top), (0.5, top + 0.15), (0.95, 0.45))),
        (2, polygon((-0.15 - door, 0.6), (-0.12, top + 0.5), (-0.15 + door, 0.6))),
    ]


def _bell(r: Rng) -> Drawing:
    flare = r.uniform(0.65, 0.85)
    return [
        (1, band(0, -0.8, 0.17, 0.09)),
        (2, ellipse(0, 0.72, 0.16, 0.16)),
        (0, polygon(
            (-flare, 0.6), (-0.5, 0.3), (-0.42, -0.4), (-0.2, -0.7),
            (0.2, -0.7), (0.42, -0.4), (0.5, 0.3), (flare, 0.6),
        )),
        (1, rectangle(-flare, 0.52, flare, 0.66)),
    ]  # fmt: skip


def _snowman(r: Rng) -> Drawing:
    low = r.uniform(0.42, 0.52)
    parts = [
        (0, ellipse(0, 0.5, low, 0.45)),
        (0, ellipse(0, -0.15, 0.34, 0.32)),
        (0, ellipse(0, -0.6, 0.24, 0.23)),
    ]
    parts += [(1, rectangle(-0.3, -0.82, 0.3, -0.75)), (1, rectangle(-0.19, -1.0, 0.19, -0.8))]
    return [
        *parts,
        (2, polygon((0, -0.62), (0.35, -0.56), (0, -0.52))),
        (1, rectangle(-0.3, -0.4, 0.3, -0.32)),
    ]


def _balloon(r: Rng) -> Drawing:
    wide = r.uniform(0.6, 0.75)
    return [
        (1, polygon((-wide * 0.7, 0.05), (-0.2, 0.62), (0.2, 0.62), (wide * 0.7, 0.05))),
        (0, ellipse(0, -0.3, wide, 0.65)),
        (2, ellipse(0, -0.3, wide * r.uniform(0.3, 0.5), 0.65)),
        (1, rectangle(-0.2, 0.68, 0.2, 0.95)),
    ]


def _sailboat(r: Rng) -> Drawing:
    mast, boom = r.uniform(-0.15, 0.15), r.uniform(0.2, 0.32)
    return [
        (1, rectangle(mast - 0.03, -0.95, mast + 0.03, 0.45)),
        (0, polygon((mast + 0.06, -0.9), (mast + 0.06, boom), (0.85, boom))),
        (2, polygon((mast - 0.06, -0.7), (mast - 0.06, boom), (-0.7, boom))),
        (1, polygon((-0.9, 0.42), (0.95, 0.42), (0.6, 0.85), (-0.6, 0.85))),
    ]


def _cup(r: Rng) -> Drawing:
    top, bottom = r.uniform(0.5, 0.62), r.uniform(0.32, 0.58)
    return [
        (1, band(top - 0.05, 0.05, 0.38, 0.22, -90, 90)),
        (0, polygon((-top, -0.7), (top, -0.7), (bottom, 0.75), (-bottom, 0.75))),
        (2, ellipse(0, -0.7, top, 0.14)),
        (1, rectangle(-bottom, 0.0, bottom, r.uniform(0.12, 0.35))),
    ]


def _butterfly(r: Rng) -> Drawing:
    up, low = r.uniform(0.42, 0.55), r.uniform(0.3, 0.42)
    parts = [(0, ellipse(s * 0.47, -0.35, 0.45, up)) for s in (-1, 1)]
    parts += [(1, ellipse(s * 0.36, 0.45, 0.34, low)) for s in (-1, 1)]
    parts += [(2, ellipse(s * 0.5, -0.35, 0.18, up * 0.4)) for s in (-1, 1)]
    parts.append((2, ellipse(0, 0.05, 0.09, 0.7)))
    return parts + [(2, polygon((0, -0.6), (s * 0.3, -1.0), (s * 0.22, -1.0))) for s in (-1, 1)]


def _guitar(r: Rng) -> Drawing:
    waist = r.uniform(0.3, 0.4)
    return [
        (1, rectangle(-0.07, -0.85, 0.07, 0.2)),
        (1, rectangle(-0.14, -1.0, 0.14, -0.8)),
        (0, ellipse(0, 0.2, waist, 0.28)),
        (0, ellipse(0, 0.6, waist + 0.15, 0.36)),
        (2, ellipse(0, 0.38, 0.14, 0.14)),
        (1, rectangle(-0.2, 0.7, 0.2, 0.77)),
    ]


def _lamp(r: Rng) -> Drawing:
    top, low = r.uniform(0.22, 0.4), r.uniform(0.6, 0.8)
    return [
        (1, rectangle(-0.06, -0.1, 0.06, 0.8)),
        (1, ellipse(0, 0.85, r.uniform(0.35, 0.5), 0.12)),
        (0, polygon((-top, -0.9), (top, -0.9), (low, 0.0), (-low, 0.0))),
        (2, rectangle(-low, -0.1, low, 0.0)),
    ]


def _bird(r: Rng) -> Drawing:
    wing = r.uniform(-0.9, -0.5)
    return [
        (1, polygon((0.35, 0.0), (0.98, -0.25), (0.95, 0.1))),
        (0, ellipse(0.0, 0.1, 0.55, 0.35)),
        (0, ellipse(-0.5, -0.25, 0.26, 0.25)),
        (2, polygon((-0.72, -0.3), (-1.0, -0.18), (-0.7, -0.15))),
        (1, polygon((-0.2, 0.0), (0.25, wing), (0.4, 0.1))),
        (2, rectangle(-0.05, 0.4, 0.0, 0.75)),
        (2, rectangle(0.12, 0.4, 0.17, 0.75)),
    ]


def _hammer(r: Rng) -> Drawing:
    head = r.uniform(0.22, 0.3)
    return [
        (1, rectangle(-0.09, -0.5, 0.09, 0.98)),
        (0, rectangle(-0.1, -0.55 - head, 0.62, -0.55 + head * 0.6)),
        (0, polygon((-0.1, -0.55 - head), (-0.75, r.uniform(-0.6, -0.4)), (-0.1, -0.5))),
        (2, rectangle(-0.11, 0.55, 0.11, 0.98)),
    ]


def _apple(r: Rng) -> Drawing:
    high = r.uniform(0.58, 0.72)
    return [
        (0, ellipse(-0.25, 0.2, 0.5, high)),
        (0, ellipse(0.25, 0.2, 0.5, high)),
        (1, polygon((-0.04, -0.35), (0.1, -0.85), (0.2, -0.82), (0.06, -0.35))),
        (2, ellipse(0.38, -0.62, 0.28, 0.12)),
    ]


def _cat(r: Rng) -> Drawing:
    ear = r.uniform(-0.98, -0.8)
    parts = [(0, polygon((s * 0.75, -0.1), (s * 0.62, ear), (s * 0.15, -0.45))) for s in (-1, 1)]
    parts += [(1, polygon((s * 0.62, -0.3), (s * 0.57, ear + 0.2), (s * 0.33, -0.45))) for s in (-1, 1)]
    parts.append((0, ellipse(0, 0.1, 0.8, r.uniform(0.6, 0.72))))
    parts += [(2, ellipse(s * 0.32, 0.0, 0.12, 0.15)) for s in (-1, 1)]
    parts.append((1, polygon((-0.1, 0.25), (0.1, 0.25), (0.0, 0.38))))
    return parts + [(2, polygon((s * 0.2, 0.36), (s * 1.0, 0.28), (s * 1.0, 0.34))) for s in (-1, 1)]


def _traffic_light(r: Rng) -> Drawing:
    wide = r.uniform(0.28, 0.36)
    parts = [(1, rectangle(-0.07, 0.4, 0.07, 1.0)), (0, rectangle(-wide, -0.95, wide, 0.5))]
    lit = int(r.integers(0, 3))
    return parts + [(2 if i == lit else 1, ellipse(0, -0.68 + 0.45 * i, wide * 0.6, 0.18)) for i in range(3)]


SOURCE: dict[str, Callable[[Rng], Drawing]] = {
    "house": _house, "tree": _tree, "car": _car, "fish": _fish, "flower": _flower, "bottle": _bottle, "chair": _chair,
    "umbrella": _umbrella, "key": _key, "mushroom": _mushroom, "rocket": _rocket, "clock": _clock, "cactus": _cactus,
    "ice cream": _ice_cream, "tent": _tent, "bell": _bell, "snowman": _snowman, "hot air balloon": _balloon,
}  # fmt: skip
TARGET: dict[str, Callable[[Rng], Drawing]] = {
    "sailboat": _sailboat, "cup": _cup, "butterfly": _butterfly, "guitar": _guitar, "table lamp": _lamp, "bird": _bird,
    "hammer": _hammer, "apple": _apple, "cat": _cat, "traffic light": _traffic_light,
}  # fmt: skip
