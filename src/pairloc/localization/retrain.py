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
from pairloc.localization.sampling import PairDrawer, Shown, draw
from pairloc.localization.target import Selection, Target
from pairloc.settings import EnergySettings, LocalizationSettings

_LOOK = 256  # pairs of bags the held-out loss is measured on
_FEWEST_STEPS = 60  # few tags are learned in few steps: two a tag, at least these


@dataclass(frozen=True)
class Positives:
    """The positive bags of all classes with the box that is selected in each."""

    shown: Shown  # n entries
    box: Tensor  # (n, 4)

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
        shown = Shown.of(torch.cat(bags).to(device), torch.cat(labels).to(device), len(target.classes))
        return cls(shown, torch.cat(boxes))

    def __len__(self) -> int:
        return len(self.shown)


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
    tagged = target.tagged.to(bags.device)
    sides = {}
    for name, mask in (("train", filled & ~held), ("held", filled & held), ("all", filled)):
        sides[name] = Positives.of(target, selection, mask), torch.nonzero(mask)[:, 0].to(bags.device)

    def drawn(name: str, seed: int) -> tuple[Positives, PairDrawer]:
        positives, usable = sides[name]
        return positives, PairDrawer(positives.shown, usable, tagged, 1 - training.negatives, seed)

    exact = energy.trains_unary and settings.unary.fit == "exact"
    sampled = energy.trains_pairs or (energy.trains_unary and not exact)
    count = sides["train"][0].shown.count
    curve: Curve = []
    if sampled and len(sides["train"][0]) >= 2:
        positives, drawer = drawn("train", seed)

        def loss() -> Tensor:
            return _loss(scores, bags, positives, drawer, training.pairs, settings, energy)

        def held_out() -> Tensor:
            return _loss(scores, bags, *drawn("held", seed + 1), _LOOK, settings, energy)

        watched = held_out if len(sides["held"][0]) >= 8 else None
        steps = min(training.steps, max(_FEWEST_STEPS, 2 * sum(map(len, target.positives))))
        curve = descend(scores, loss, watched, training, what="class scores", steps=steps)
    silence(scores.unary.linear, count < 1)
    silence(scores.relation.score, count < 2)
    if exact:  # it learns from the held-out bags too
        everything, usable = sides["all"]
        fit_class_unary(scores, target, everything, usable, settings)
        silence(scores.unary.linear, everything.shown.count < 1)
    return scores.eval(), curve


@torch.no_grad()
def silence(layer: nn.Linear, classes: Tensor) -> None:
    """Classes (C,) that had nothing to learn from say nothing."""
    layer.weight[classes] = 0.0
    layer.bias[classes] = 0.0


@torch.no_grad()
def fit_class_unary(
    scores: ClassScores, target: Target, positives: Positives, usable: Tensor, settings: LocalizationSettings
) -> None:
    """psi^U_c by the loss that sampled pairs of bags have on average, of every class alike."""
    bags, classes, training = target.class_bags, len(target.classes), settings.training
    shown, tagged = positives.shown, target.tagged.to(bags.device)
    first = training.foreground / (training.foreground + training.background)
    negative = training.negatives / (2 - training.negatives)  # visits of negative bags for one of a positive bag
    place = torch.full((bags.count, classes), -1, device=bags.device)
    place[shown.bag, shown.label] = torch.arange(len(positives), device=bags.device)
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
        weight[row, :, label] = share / shown.count[label][:, None]
        shows[row, :, label] = foreground.to(shows)
        return shows, weight

    start = torch.zeros(classes, bags.d + 1, device=bags.device)
    scores.unary.set(fit_logistic(bags.features, targets, usable, start, decay=settings.unary.decay))


def _even(chosen: Tensor) -> Tensor:
    """A weight of 1 a bag, shared evenly among those chosen of it: (n, B) -> (n, B)."""
    return chosen / chosen.sum(dim=1, keepdim=True).clamp(min=1)


def _loss(
    scores: ClassScores,
    bags: Bags,
    positives: Positives,
    drawer: PairDrawer,
    count: int,
    settings: LocalizationSettings,
    energy: EnergySettings,
) -> Tensor:
    """The mean loss of some pairs of bags (paper, eq. loss)."""
    pairs, training, shown = drawer.draw(count), settings.training, positives.shown
    counts = (training.foreground, training.background)
    label, positive = shown.label[pairs.first], pairs.second >= 0
    partner = torch.where(positive, shown.bag[pairs.second.clamp(min=0)], drawer.others[pairs.other.clamp(min=0)])
    sides = []
    for index, box, shows in (
        (shown.bag[pairs.first], positives.box[pairs.first], torch.ones_like(positive)),
        (partner, positives.box[pairs.second.clamp(min=0)], positive),
    ):
        overlap = iou(box[:, None], bags.boxes[index])[:, 0]  # (n, B)
        foreground = (overlap >= training.foreground_iou) & shows[:, None] & bags.valid[index]
        sample = draw(foreground, bags.valid[index] & ~foreground, counts, drawer.generator)
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
