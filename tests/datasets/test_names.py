"""Names: which tags are known classes, and which are not although they look like one."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairloc.curation.splits import COCO17
from pairloc.datasets.names import ALIASES, groups_of_same_names, known_class, same_name
from pairloc.localization.known import KnownClasses
from pairloc.weights import PACKAGED, weights_folder

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "localize.md"


@pytest.mark.parametrize(
    ("tag", "known"),
    [
        ("dog", "dog"),
        ("Dog", "dog"),
        (" DOG ", "dog"),
        ("traffic_light", "traffic light"),
        ("Traffic-Light", "traffic light"),
        ("trafficlight", "traffic light"),
        ("diningtable", "dining table"),
        ("dogs", "dog"),
        ("dog", "dogs"),
        ("buses", "bus"),
        ("benches", "bench"),
        ("toothbrushes", "toothbrush"),
        ("tennis_rackets", "tennis racket"),
        ("wine glasses", "wine glass"),
        ("cherries", "cherry"),
        ("monkeys", "monkey"),
        ("knives", "knife"),
        ("giraffes", "giraffe"),
        ("leaf", "leaves"),
        ("potatoes", "potato"),
        ("people", "person"),
        ("persons", "person"),
        ("person", "people"),
        ("mice", "mouse"),
        ("women", "woman"),
        ("firemen", "fireman"),
        ("children", "child"),
        ("sheep", "sheep"),
        ("scissors", "scissor"),
        ("ski", "skis"),
        ("aeroplane", "airplane"),
        ("Planes", "airplane"),
        ("airplane", "aeroplane"),
        ("motorbikes", "motorcycle"),
        ("TV-Monitor", "tv"),
        ("tvmonitor", "tv"),
        ("television", "tvmonitor"),
        ("sofas", "couch"),
        ("mobile phone", "cell phone"),
        ("Smartphone", "cell phone"),
        ("cellphone", "cell phone"),
        ("fridges", "refrigerator"),
        ("bikes", "bicycle"),
        ("hair dryer", "hair drier"),
        ("humans", "person"),
        ("Straßenbahn", "STRASSENBAHN"),
        ("猫", "猫"),
    ],
)
def test_a_tag_that_is_a_known_class(tag: str, known: str) -> None:
    others = ["zebra", known, "kite"]
    assert known_class(tag, others) == 1
    assert known_class(tag, ["zebra", "kite"]) is None


@pytest.mark.parametrize(
    ("tag", "known"),
    [
        ("kitten", "cat"),
        ("puppy", "dog"),
        ("man", "person"),
        ("woman", "person"),
        ("child", "person"),
        ("taxi", "car"),
        ("teapot", "pot"),
        ("hot dog", "dog"),
        ("dog", "hot dog"),
        ("teddy bear", "bear"),
        ("bear", "teddy bear"),
        ("cup", "cupboard"),
        ("car", "carrot"),
        ("glasses", "glass"),  # spectacles
        ("glass", "glasses"),
        ("glass", "wine glass"),
        ("shorts", "short"),
        ("ship", "boat"),
        ("monitor", "tv"),
        ("phone booth", "cell phone"),
        ("bike", "motorcycle"),
        ("table", "dining table"),
        ("purse", "handbag"),
        ("tapes", "tap"),
        ("planes", "plan"),
        ("princess", "prince"),
        ("cookie", "cook"),
        ("women", "man"),
        ("", "cat"),
        ("-", "cat"),
        ("s", "cat"),
    ],
)
def test_a_tag_that_only_looks_like_a_known_class(tag: str, known: str) -> None:
    assert known_class(tag, [known]) is None


def test_the_closest_match_wins() -> None:
    names = ["TV monitor", "tvs", "T-V", "tv"]
    assert [known_class("tv", names[:count]) for count in (4, 3, 2, 1, 0)] == [3, 2, 1, 0, None]


def test_a_class_is_no_other_class_of_coco() -> None:
    """No class of the protocol's target is recognised, and no known class is mistaken for another."""
    known = KnownClasses.load(weights_folder(PACKAGED) / "proposer")
    assert known is not None
    assert len({*known.names, *COCO17}) == 80
    assert [name for name in COCO17 if known_class(name, known.names) is not None] == []
    for index, name in enumerate(known.names):
        assert known_class(name, known.names) == index
        assert known_class(name, known.names[:index] + known.names[index + 1 :]) is None


def test_no_name_has_two_meanings() -> None:
    for group, other in combinations(ALIASES, 2):
        assert [name for name in group if known_class(name, other) is not None] == []
    for group in ALIASES:
        assert all(known_class(name, group[:1]) == 0 for name in group)


def test_the_documented_aliases_are_those_of_the_code() -> None:
    rows = [f"| {first} | {', '.join(others)} |" for first, *others in ALIASES]
    assert "\n".join(rows) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        ([], []),
        (["cat", "dog"], []),
        (["Dog", "cat", "dogs", "dog"], [("Dog", "dogs", "dog")]),
        (
            ["traffic light", "traffic-lights", "Cake", "cakes"],
            [("traffic light", "traffic-lights"), ("Cake", "cakes")],
        ),
        (["bus", "buse"], []),  # they have a plural in common, and are not the same
        (["couch", "sofa"], []),  # other names of a thing are for known classes only
        (["😀", "😀s"], [("😀", "😀s")]),
    ],
)
def test_names_that_mean_the_same_are_grouped(names: list[str], groups: list[tuple[str, ...]]) -> None:
    assert groups_of_same_names(names) == groups


@given(
    st.lists(st.sampled_from(["dog", "Dogs", "DOG", "mouse", "mice", "tie", "ties", "a b", "a-b", "ab"]), unique=True)
)
def test_groups_are_of_names_that_are_the_same_pair_by_pair(names: list[str]) -> None:
    groups = groups_of_same_names(names)
    for group in groups:
        for name in group[1:]:
            assert any(same_name(name, other) for other in group if other != name)
    alone = set(names) - {name for group in groups for name in group}
    assert not any(same_name(one, other) for one in alone for other in names if one != other)
