import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pairloc.boxes import Floats, area, clip, iou, to_xywh

corner = st.floats(-50, 50)


@st.composite
def boxes_strategy(draw: st.DrawFn) -> Floats:
    rows = draw(st.lists(st.tuples(corner, corner, st.floats(0, 50), st.floats(0, 50)), max_size=5))
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    return np.concatenate([table[:, :2], table[:, :2] + table[:, 2:]], axis=1)


def slow_iou(a: list[float], b: list[float]) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    intersection = width * height
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - intersection
    return intersection / union if union > 0 else 0.0


@given(boxes_strategy(), boxes_strategy())
def test_iou_equals_a_loop(a: Floats, b: Floats) -> None:
    expected = np.array([[slow_iou(x, y) for y in b.tolist()] for x in a.tolist()]).reshape(len(a), len(b))
    assert iou(a, b).shape == (len(a), len(b))
    np.testing.assert_allclose(iou(a, b), expected, atol=1e-9)
    np.testing.assert_allclose(iou(a, b), iou(b, a).T, atol=1e-12)


@given(boxes_strategy())
def test_a_box_has_iou_one_with_itself(boxes: Floats) -> None:
    has_area = area(boxes) > 1e-6
    np.testing.assert_allclose(np.diag(iou(boxes, boxes))[has_area], 1.0)
    assert (np.diag(iou(boxes, boxes))[area(boxes) == 0] == 0).all()


@given(boxes_strategy())
def test_clipped_boxes_are_inside_and_clipping_is_idempotent(boxes: Floats) -> None:
    sizes = np.tile([[20.0, 10.0]], (len(boxes), 1))
    clipped = clip(boxes, sizes)
    assert (clipped >= 0).all()
    assert (clipped <= [20, 10, 20, 10]).all()
    np.testing.assert_array_equal(clip(clipped, sizes), clipped)


def test_xywh() -> None:
    np.testing.assert_array_equal(to_xywh(np.array([[1.0, 2.0, 4.0, 8.0]])), [[1, 2, 3, 6]])
