"""Remarks for the log: what a user should know about the tags, and about boxes that may not show them."""

from collections import Counter

import torch

from pairloc.errors import abbreviated
from pairloc.localization.alternate import State
from pairloc.localization.learned import Learned
from pairloc.localization.target import Target

_SURE = 0.5  # a known class of a higher probability is recognised


def known_tags(target: Target, learned: Learned) -> str:
    """Say which tags are known classes, and which class a tag is that is called otherwise; empty if all are new."""
    if learned.known is None:
        return ""
    tags = []
    for tag, own in zip(target.classes, target.own, strict=False):  # `own` is empty if all are new
        if own is not None:
            name = learned.known.names[own]
            tags.append(tag if tag.casefold() == name.casefold() else f"{tag} ({name})")
    if not tags:
        return ""
    what = "1 tag is a class" if len(tags) == 1 else f"{len(tags)} tags are classes"
    return f"{what} that the weights know: {abbreviated(tags)}"


def everywhere(target: Target) -> str:
    """Say which tags every image has, since nothing can recur without them; empty if there are none."""
    tags = [target.classes[label] for label in torch.nonzero(target.tagged.all(dim=0))[:, 0].tolist()]
    if not tags:
        return ""
    return (
        f"every image has {'the tag' if len(tags) == 1 else 'the tags'} {abbreviated(tags)}, so boxes are not compared "
        "with images that lack it; some images without it would help"
    )


def familiar(target: Target, learned: Learned, state: State) -> str:
    """Say what the proposer recognises in the selected boxes if it does in most of them; empty otherwise.

    A tag that is a known class itself is left out.
    """
    if learned.known is None or target.known is None:
        return ""
    found, boxes = Counter[str](), 0
    for label, (bags, selection) in enumerate(zip(target.positives, state.selection, strict=True)):
        own = target.own[label] if target.own else None
        if own is None:
            known = target.known[bags.to(target.known.device), selection.to(target.known.device)].float()  # (M, K)
            sure = known.amax(dim=1) > _SURE
            found.update(learned.known.names[index] for index in known.argmax(dim=1)[sure].tolist())
            boxes += len(bags)
    if not boxes or found.total() <= boxes / 2:
        return ""
    names = abbreviated([name for name, _ in found.most_common(3)])
    return (
        f"{found.total()} of {boxes} boxes look like things that the weights know by name ({names}) and may not show "
        "the tag; review them first"
    )
