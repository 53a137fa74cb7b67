"""Names: which names of classes mean the same, and which known class a tag is.

A tag is a known class if both names are the same, apart from case, spaces, hyphens, underscores and singular or plural,
or if they are other names of the same thing (`ALIASES`). A kind of a class is not the class: "kitten" is no other name
of "cat". A missed match costs little, a wrong one gives a tag the boxes of another class, so words with two meanings,
such as "purse" or "table", are left out.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache

# Names of the same thing, first that of COCO; the plural of each counts too.
ALIASES = (
    ("airplane", "aeroplane", "plane"),
    ("backpack", "rucksack"),
    ("baseball glove", "baseball mitt"),
    ("bicycle", "bike"),
    ("car", "automobile"),
    ("cell phone", "mobile phone", "smartphone"),
    ("couch", "sofa"),
    ("donut", "doughnut"),
    ("fire hydrant", "hydrant"),
    ("hair drier", "hair dryer", "blow dryer"),
    ("laptop", "laptop computer", "notebook computer"),
    ("microwave", "microwave oven"),
    ("motorcycle", "motorbike"),
    ("person", "human", "human being"),
    ("refrigerator", "fridge"),
    ("remote", "remote control"),
    ("teddy bear", "teddy"),
    ("tennis racket", "tennis racquet"),
    ("tie", "necktie"),
    ("traffic light", "traffic signal", "stoplight"),
    ("truck", "lorry"),
    ("tv", "television", "tv monitor", "tv set", "television set"),
)
_IRREGULAR = {
    "person": "people", "child": "children", "mouse": "mice", "goose": "geese", "foot": "feet", "tooth": "teeth",
    "ox": "oxen", "cactus": "cacti",
}  # fmt: skip
_OTHER_THINGS = {"glasses", "shorts", "trunks"}  # more often another thing than several of the singular


def known_class(name: str, names: Sequence[str]) -> int | None:
    """Return the index of the known class, among `names`, that a tag is; None if it is none of them.

    >>> known_class("Dogs", ["person", "dog"]), known_class("sofa", ["couch"]), known_class("puppy", ["dog"])
    (1, 0, None)
    """
    aliases = [alias for group in ALIASES if any(same_name(name, alias) for alias in group) for alias in group]
    matches: tuple[Callable[[str], bool], ...] = (  # the closest comes first
        lambda other: other == name,
        lambda other: _joined(other) == _joined(name),
        lambda other: same_name(other, name),
        lambda other: any(same_name(other, alias) for alias in aliases),
    )
    for matching in matches:
        for index, other in enumerate(names):
            if matching(other):
                return index
    return None


def same_name(one: str, other: str) -> bool:
    """Whether two names are the same, or one is the plural of the other."""
    return _joined(one) in _forms(other) or _joined(other) in _forms(one)


def groups_of_same_names(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Group names that differ in case, spaces, hyphens, underscores or number only; names of their own are left out.

    >>> groups_of_same_names(["Dog", "cat", "dogs", "dog"])
    [('Dog', 'dogs', 'dog')]
    """
    group_of: dict[str, list[str]] = {}  # by every form of the names in it
    groups: list[list[str]] = []
    for name in names:
        forms = {_joined(name), *_forms(name)}
        found = [group_of[form] for form in sorted(forms) if form in group_of]
        group = next((entry for entry in found if any(same_name(name, other) for other in entry)), None)
        if group is None:
            group = []
            groups.append(group)
        group.append(name)
        for form in forms:
            group_of.setdefault(form, group)
    return [tuple(group) for group in groups if len(group) > 1]


def _joined(name: str) -> str:
    return "".join(_words(name))


@cache
def _words(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^\s_-]+", name.casefold())) or (name,)


@cache
def _forms(name: str) -> frozenset[str]:
    """The name and its plurals, joined."""
    *first, last = _words(name)
    plurals = {"".join([*first, plural]) for plural in _plurals(last)} - _OTHER_THINGS
    return frozenset({_joined(name), *plurals})


def _plurals(word: str) -> set[str]:
    """All plurals that a word may have by its ending; those that do not exist harm nothing."""
    found = {word + "s"}
    if re.search(r"(s|x|z|ch|sh|o)$", word):
        found.add(word + "es")
    if re.search(r"[^aeiou]y$", word):
        found.add(word[:-1] + "ies")
    if re.search(r"(f|fe)$", word):
        found.add(re.sub(r"(f|fe)$", "ves", word))
    if word.endswith("man"):
        found.add(word[:-3] + "men")
    if word in _IRREGULAR:
        found.add(_IRREGULAR[word])
    return found
