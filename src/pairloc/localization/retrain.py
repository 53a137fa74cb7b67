"""Re-training (paper, eq. loss): the class scores of all target classes together, from the current selection."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pairloc.bags.tensors import Bags
from pairloc.boxes import iou
from pairloc.localization.descent import Curve, descend
from pairloc.localization.functions import ClassScores
from pairloc.localization.logistic import fit_logistic
from pairloc.localization.losses import mean_loss
from pairloc.localization.sampling import draw
from pairloc.localization.target import Selection, Target
from pairloc.settings import EnergySettings, LocalizationSettings

_LOOK = 256  # pairs of bags the held-out loss is measured on
_TRIES = 16  # draws of a bag that lacks a tag
_FEWEST_STEPS = 60  # few tags are learned in few steps: two a tag, at least these


@dataclass(frozen=True)
class Positives:
    """The positive bags of all classes in one list, those of a class side by side."""

    bag: Tensor  # (n,)
    label: Tensor  # (n,) class
    box: Tensor  # (n, 4) selected
    first: Tensor  # (C,) where a class begins
    count: Tensor  # (C,) and how long it is

    @classmethod
    def of(cls, target: Target, selection: Selection, allowed: Tensor) -> "Positives":
        """The selection on the bags that are allowed (N,)."""
        device = target.class_bags.device
        bags, labels, boxes = [], [], []
        for label, own in enumerate(target.positives):
            kept = allowed[own]
            bags.append(own[kept])
            labels.append(torch.full((int(kept.sum()),), label))
            boxes.append(target.selected_boxes(selection, label)[kept.to(target.bags.device)].to(device))
        count = torch.tensor([len(entry) for entry in bags])
        first = count.cumsum(0) - count
        columns = (torch.cat(bags), torch.cat(labels), torch.cat(boxes), first, count)
        return cls(*(column.to(device) for column in columns))

    def __len__(self) -> int:
        return len(self.bag)


class _Drawer:
    """Pairs of bags: a positive one with another positive of its class, or with a bag that lacks the tag."""

    def __init__(self, positives: Positives, bags: Tensor, tagged: Tensor, negatives: float, seed: int) -> None:
        self.positives, self.tagged, self.negatives = positives, tagged, negatives
        self.bags = bags  # that may be drawn, (m,)
        self.generator = torch.Generator(tagged.device).manual_seed(seed)

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Places of positives (n,), places of their partners (n,) or -1, and bags of the partners (n,)."""
        own, g, device = self.positives, self.generator, self.tagged.device
        place = torch.randint(len(own), (count,), generator=g, device=device)
        label = own.label[place]
        many = own.count[label]
        step = (torch.rand(count, generator=g, device=device) * (many - 1)).long()  # never a bag with itself
        partner = own.first[label] + (place - own.first[label] + 1 + step) % many.clamp(min=1)
        tries = self.bags[torch.randint(len(self.bags), (count, _TRIES), generator=g, device=device)]
        lacks = ~self.tagged[tries, label[:, None]]
        negative = tries.gather(1, lacks.int().argmax(dim=1, keepdim=True))[:, 0]
        is_negative = torch.rand(count, generator=g, device=device) < self.negatives
        is_negative = (is_negative | (many < 2)) & lacks.any(dim=1)
        return place, torch.where(is_negative, -1, partner), torch.where(is_negative, negative, own.bag[partner])


def retrain(
    target: Target,
    selection: Selection,
    settings: LocalizationSettings,
    energy: EnergySettings,
    *,
    allowed: Tensor | None = None,
    seed: int = 0,
) -> tuple[ClassScores, Curve]:
    """Train the class scores on the bags that are allowed (N,), all of them unless told otherwise.

    Scores that have no weight in the energy are not trained.
    """
    bags, training = target.class_bags, settings.training
    torch.manual_seed(seed)
    scores = ClassScores(bags.d, len(target.classes), settings).to(bags.device)
    allowed = torch.ones(bags.count, dtype=torch.bool) if allowed is None else allowed.cpu()
    filled = allowed & bags.valid.any(dim=1).cpu()
    held = torch.rand(bags.count, generator=torch.Generator().manual_seed(seed)) < training.held_out
    sides = {}
    for name, mask in (("train", filled & ~held), ("held", filled & held), ("all", filled)):
        positives = Positives.of(target, selection, mask)
        usable = torch.nonzero(mask)[:, 0].to(bags.device)
        tagged = target.tagged.to(bags.device)
        sides[name] = (positives, usable, tagged)
    exact = energy.trains_unary and settings.unary.fit == "exact"
    sampled = energy.trains_pairs or (energy.trains_unary and not exact)
    count = sides["train"][0].count
    curve: Curve = []
    if sampled and len(sides["train"][0]) >= 2:
        drawer = _Drawer(*sides["train"], training.negatives, seed)

        def loss() -> Tensor:
            return _loss(scores, bags, drawer, training.pairs, settings, energy)

        def held_out() -> Tensor:
            return _loss(scores, bags, _Drawer(*sides["held"], training.negatives, seed + 1), _LOOK, settings, energy)

        watched = held_out if len(sides["held"][0]) >= 8 else None
        steps = min(training.steps, max(_FEWEST_STEPS, 2 * sum(map(len, target.positives))))
        curve = descend(scores, loss, watched, training, what="class scores", steps=steps)
    silence(scores.unary.linear, count < 1)
    silence(scores.relation.score, count < 2)
    if exact:  # it learns from the held-out bags too
        everything = sides["all"]
        fit_class_unary(scores, target, everything, settings)
        silence(scores.unary.linear, everything[0].count < 1)
    return scores.eval(), curve


@torch.no_grad()
def silence(layer: nn.Linear, classes: Tensor) -> None:
    """Classes (C,) that had nothing to learn from say nothing."""
    layer.weight[classes] = 0.0
    layer.bias[classes] = 0.0


@torch.no_grad()
def fit_class_unary(
    scores: ClassScores, target: Target, side: tuple[Positives, Tensor, Tensor], settings: LocalizationSettings
) -> None:
    """psi^U_c by the loss that sampled pairs of bags have on average, of every class alike."""
    positives, usable, tagged = side
    bags, classes, training = target.class_bags, len(target.classes), settings.training
    first = training.foreground / (training.foreground + training.background)
    negative = training.negatives / (2 - training.negatives)  # visits of negative bags for one of a positive bag
    place = torch.full((bags.count, classes), -1, device=bags.device)
    place[positives.bag, positives.label] = torch.arange(len(positives), device=bags.device)
    lacking = (~tagged[usable]).sum(dim=0).clamp(min=1)  # (C,)

    def targets(some: Tensor) -> tuple[Tensor, Tensor]:
        valid = bags.valid[some]  # (n, B)
        row, label = torch.nonzero(place[some] >= 0, as_tuple=True)
        which = place[some][row, label]
        overlap = iou(positives.box[which][:, None], bags.boxes[some[row]])[:, 0]  # (p, B)
        foreground = (overlap >= training.foreground_iou) & valid[row]
        others = torch.zeros(valid.shape, device=valid.device).index_add_(0, row, foreground.float()) > 0
        weight = negative * _even(valid) + settings.unary.other_tag_weight * _even(
            others
        )  # (n, B), of bags that lack a tag
        weight = (~tagged[some])[:, None] * weight[..., None] / lacking  # (n, B, C)
        shows = torch.zeros_like(weight)
        background = valid[row] & ~foreground
        share = first * _even(foreground) + (1 - first) * _even(background)
        weight[row, :, label] = share / positives.count[label][:, None]
        shows[row, :, label] = foreground.to(shows)
        return shows, weight

    start = torch.zeros(classes, bags.d + 1, device=bags.device)
    scores.unary.set(fit_logistic(bags.features, targets, usable, start, decay=settings.unary.decay))


def _even(chosen: Tensor) -> Tensor:
    """A weight of 1 a bag, shared evenly among those chosen of it: (n, B) -> (n, B)."""
    return chosen / chosen.sum(dim=1, keepdim=True).clamp(min=1)


def _loss(
    scores: ClassScores, bags: Bags, drawer: _Drawer, count: int, settings: LocalizationSettings, energy: EnergySettings
) -> Tensor:
    place, partner, other = drawer.draw(count)
    own, training, g = drawer.positives, settings.training, drawer.generator
    counts = (training.foreground, training.background)
    label = own.label[place]
    sides = []
    for index, box, positive in (
        (own.bag[place], own.box[place], torch.ones_like(place, dtype=torch.bool)),
        (other, own.box[partner.clamp(min=0)], partner >= 0),
    ):
        overlap = iou(box[:, None], bags.boxes[index])[:, 0]  # (n, B)
        foreground = (overlap >= training.foreground_iou) & positive[:, None] & bags.valid[index]
        sample = draw(foreground, bags.valid[index] & ~foreground, counts, g)
        sides.append((bags.chosen(index, sample.proposals), sample.foreground, sample.drawn))
    (left, left_shows, left_drawn), (right, right_shows, right_drawn) = sides
    total = left.new_zeros(())
    if energy.trains_pairs:
        related = left_shows[:, :, None] & right_shows[:, None]
        both = left_drawn[:, :, None] & right_drawn[:, None]
        total = total + mean_loss(scores.relation.of_classes(left, right, label), related, both)
    if energy.trains_unary and settings.unary.fit == "sampled":
        shows, drawn = torch.cat([left_shows, right_shows]), torch.cat([left_drawn, right_drawn])
        unary = scores.unary.of_classes(torch.cat([left, right]), label.repeat(2))
        total = total + mean_loss(unary, shows, drawn)
    return total
