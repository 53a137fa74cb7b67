"""The step that keeps the tags of an image apart after the classes were re-localized one by one."""

import torch
from torch import Tensor

from pairloc.boxes import iou
from pairloc.inference.exclusion import distinct
from pairloc.localization.sharing import SHARED_IOU, tags_of_images
from pairloc.localization.target import Selection, Target


def keep_apart(target: Target, selection: Selection, costs: tuple[Tensor, ...], max_iou: float) -> Selection:
    """Give every image whose tags share a box the cheapest proposals that overlap by at most `max_iou`.

    `costs` (M, B) of every class are those of each proposal if the other bags keep theirs. Images whose boxes are
    apart already are not changed.
    """
    chosen = [class_selection.clone() for class_selection in selection]
    for bag, tags in tags_of_images(target.positives).items():
        overlap = iou(target.bags.boxes[bag], target.bags.boxes[bag]).cpu()  # (B, B)
        apart = overlap <= max_iou
        selected = torch.tensor([int(chosen[label][row]) for label, row in tags])
        pairs = apart[selected[:, None], selected] | torch.eye(len(tags), dtype=torch.bool)
        if not pairs.all():
            cost = torch.stack([costs[label][row].cpu() for label, row in tags])
            for (label, row), proposal in zip(tags, distinct(cost, apart), strict=True):
                chosen[label][row] = proposal
    return tuple(chosen)


def refine_apart(
    positives: tuple[Tensor, ...],
    selected: tuple[Tensor, ...],
    refined: tuple[Tensor, ...],
    confidence: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """Return the refined boxes (M, 4) of every class, but the selected one where refining made it that of another tag.

    Of two tags whose refined boxes are one (IoU above 0.7) the more confident one keeps it. Parameters hold, for every
    class, its bags (M,), their boxes (M, 4) before and after refining, and the confidence in them (M,).
    """
    before, boxes = [table.cpu() for table in selected], [table.cpu().clone() for table in refined]
    for tags in tags_of_images(positives).values():
        kept: list[Tensor] = []
        for label, row in sorted(tags, key=lambda tag: -float(confidence[tag[0]][tag[1]])):
            box = boxes[label][row].clone()
            if kept and bool((iou(box[None], torch.stack(kept)) > SHARED_IOU).any()):
                box = boxes[label][row] = before[label][row]
            kept.append(box)
    return tuple(boxes)
