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
from pairloc.localization.sampling import PairDrawer, PositiveBags, draw
from pairloc.localization.target import Selection, Target
from pairloc.settings import EnergySettings, LocalizationSettings

_HELD_OUT_PAIRS = 256  # pairs of bags used to measure the held-out loss
_MIN_STEPS = 60  # small targets train for two steps per tag, but not for fewer than this


@dataclass(frozen=True)
class Positives:
    """The positive bags of all classes, with the selected box of each."""

    entries: PositiveBags  # n entries
    box: Tensor  # (n, 4)
    weight: Tensor  # (n,) of the entries of each class, with mean 1

    @classmethod
    def of(
        cls, target: Target, selection: Selection, allowed: Tensor, trust: tuple[Tensor, ...] | None = None
    ) -> "Positives":
        """Collect the selected boxes of the bags in the mask `allowed` (N,), weighted by their `trust` (M,)."""
        device = target.class_bags.device
        bags, labels, boxes, weights = [], [], [], []
        for label, class_bags in enumerate(target.positives):
            kept = allowed[class_bags]
            bags.append(class_bags[kept])
            labels.append(torch.full((int(kept.sum()),), label))
            boxes.append(target.selected_boxes(selection, label)[kept.to(target.bags.device)].to(device))
            weight = torch.ones(int(kept.sum())) if trust is None else trust[label][kept]
            weights.append(weight / weight.mean().clamp(min=1e-6) if len(weight) else weight)
        entries = PositiveBags.of(torch.cat(bags).to(device), torch.cat(labels).to(device), len(target.classes))
        return cls(entries, torch.cat(boxes), torch.cat(weights).to(device))

    def __len__(self) -> int:
        return len(self.entries)


def retrain(
    target: Target,
    selection: Selection,
    settings: LocalizationSettings,
    energy: EnergySettings,
    *,
    allowed: Tensor | None = None,
    previous: ClassScores | None = None,
    trust: tuple[Tensor, ...] | None = None,
    seed: int = 0,
) -> tuple[ClassScores, Curve]:
    """Train the class scores on the bags in the mask `allowed` (N,), by default all.

    The exact fit weighs each selected box by its probability in `trust` (M,) to the power `unary.trust`.
    With `training.warm_start` gradient descent starts from the `previous` scores, otherwise from scratch. Scores
    without weight in the energy are not trained. Returns the scores and the training curve, which is empty if nothing
    is trained by gradient descent.
    """
    bags, training = target.class_bags, settings.training
    torch.manual_seed(seed)
    scores = ClassScores(bags.d, len(target.classes), settings).to(bags.device)
    if training.warm_start and previous is not None:
        scores.load_state_dict(previous.state_dict())
    allowed = torch.ones(bags.count, dtype=torch.bool) if allowed is None else allowed.cpu()
    filled = allowed & bags.valid.any(dim=1).cpu()
    # With a warm start every round holds out the same bags, because the previous scores must not be trained on them.
    held_out_seed = settings.seed if training.warm_start else seed
    held_out = torch.rand(bags.count, generator=torch.Generator().manual_seed(held_out_seed)) < training.held_out
    tagged = target.tagged.to(bags.device)
    powers = None if trust is None else tuple(weight**settings.unary.trust for weight in trust)
    splits = {}
    for name, mask in (("train", filled & ~held_out), ("held out", filled & held_out), ("all", filled)):
        splits[name] = Positives.of(target, selection, mask, powers), torch.nonzero(mask)[:, 0].to(bags.device)

    def drawer_of(split: str, seed: int) -> tuple[Positives, PairDrawer]:
        positives, usable = splits[split]
        return positives, PairDrawer(positives.entries, usable, tagged, 1 - training.negatives, seed)

    exact = energy.trains_unary and settings.unary.fit == "exact"
    sampled = energy.trains_pairs or (energy.trains_unary and not exact)
    count = splits["train"][0].entries.count
    curve: Curve = []
    if sampled and len(splits["train"][0]) >= 2:
        positives, drawer = drawer_of("train", seed)

        def loss() -> Tensor:
            return pair_loss(scores, bags, positives, drawer, training.pairs, settings, energy)

        def held_out_loss() -> Tensor:
            return pair_loss(scores, bags, *drawer_of("held out", seed + 1), _HELD_OUT_PAIRS, settings, energy)

        validation = held_out_loss if len(splits["held out"][0]) >= 8 else None
        steps = min(training.steps, max(_MIN_STEPS, 2 * sum(map(len, target.positives))))
        curve = descend(scores, loss, validation, training, what="class scores", steps=steps)
    zero_classes(scores.unary.linear, count < 1)
    zero_classes(scores.relation.score, count < 2)
    if exact:  # needs no early stopping, so it uses the held-out bags too
        all_positives, usable = splits["all"]
        fit_class_unary(scores, target, all_positives, usable, settings)
        zero_classes(scores.unary.linear, all_positives.entries.count < 1)
    return scores.eval(), curve


@torch.no_grad()
def zero_classes(layer: nn.Linear, classes: Tensor) -> None:
    """Set the weights of the classes in a mask (C,) to zero, because they have no training data."""
    layer.weight[classes] = 0.0
    layer.bias[classes] = 0.0


@torch.no_grad()
def fit_class_unary(
    scores: ClassScores, target: Target, positives: Positives, usable: Tensor, settings: LocalizationSettings
) -> None:
    """Fit psi^U_c of all classes exactly, by logistic regression on the bags `usable` (m,).

    The weights of the proposals make the loss equal to the expected loss of sampled pairs of bags.
    """
    bags, classes, training = target.class_bags, len(target.classes), settings.training
    entries, tagged = positives.entries, target.tagged.to(bags.device)
    foreground_weight = training.foreground / (training.foreground + training.background)
    negative = training.negatives / (2 - training.negatives)  # draws of a negative bag per draw of a positive bag
    entry_of = torch.full((bags.count, classes), -1, device=bags.device)
    entry_of[entries.bag, entries.label] = torch.arange(len(positives), device=bags.device)
    lacking = (~tagged[usable]).sum(dim=0).clamp(min=1)  # (C,) number of bags without the tag

    def targets(batch: Tensor) -> tuple[Tensor, Tensor]:
        valid = bags.valid[batch]  # (n, B)
        row, label = torch.nonzero(entry_of[batch] >= 0, as_tuple=True)
        entry = entry_of[batch][row, label]
        overlap = iou(positives.box[entry][:, None], bags.boxes[batch[row]])[:, 0]  # (p, B)
        foreground = (overlap >= training.foreground_iou) & valid[row]
        any_tag = torch.zeros(valid.shape, device=valid.device).index_add_(0, row, foreground.float()) > 0
        weight = negative * _uniform(valid) + settings.unary.other_tag_weight * _uniform(any_tag)  # (n, B)
        weight = (~tagged[batch])[:, None] * weight[..., None] / lacking  # (n, B, C)
        shows = torch.zeros_like(weight)
        background = valid[row] & ~foreground
        positive = foreground_weight * _uniform(foreground) + (1 - foreground_weight) * _uniform(background)
        weight[row, :, label] = positives.weight[entry][:, None] * positive / entries.count[label][:, None]
        shows[row, :, label] = foreground.to(shows)
        return shows, weight

    start = torch.zeros(classes, bags.d + 1, device=bags.device)
    scores.unary.set(fit_logistic(bags.features, targets, usable, start, decay=settings.unary.decay))


def _uniform(mask: Tensor) -> Tensor:
    """Distribute a weight of 1 per bag uniformly over the proposals in a mask: (n, B) -> (n, B)."""
    return mask / mask.sum(dim=1, keepdim=True).clamp(min=1)


def pair_loss(
    scores: ClassScores,
    bags: Bags,
    positives: Positives,
    drawer: PairDrawer,
    count: int,
    settings: LocalizationSettings,
    energy: EnergySettings,
) -> Tensor:
    """Return the mean loss of `count` drawn pairs of bags (paper, eq. loss)."""
    pairs, training, entries = drawer.draw(count), settings.training, positives.entries
    counts = (training.foreground, training.background)
    label, positive = entries.label[pairs.first], pairs.second >= 0
    partner = torch.where(positive, entries.bag[pairs.second.clamp(min=0)], drawer.others[pairs.other.clamp(min=0)])
    samples = []
    for index, box, shows in (
        (entries.bag[pairs.first], positives.box[pairs.first], torch.ones_like(positive)),
        (partner, positives.box[pairs.second.clamp(min=0)], positive),
    ):
        overlap = iou(box[:, None], bags.boxes[index])[:, 0]  # (n, B)
        foreground = (overlap >= training.foreground_iou) & shows[:, None] & bags.valid[index]
        sample = draw(foreground, bags.valid[index] & ~foreground, counts, drawer.generator)
        samples.append((bags.chosen(index, sample.proposals), sample.foreground, sample.drawn))
    (left, left_shows, left_drawn), (right, right_shows, right_drawn) = samples
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
