"""The step that keeps the tags of an image apart after the classes were re-localized one by one."""

import torch
from torch import Tensor

from pairloc.boxes import iou
from pairloc.inference.exclusion import distinct
from pairloc.localization.sharing import tags_of_images
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
