"""Knowledge transfer (paper, section 4.2): class-generic unary and pair scores, learned on the source's boxes."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pairloc.bags.tensors import Bags
from pairloc.boxes import iou
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.localization.descent import Curve, descend
from pairloc.localization.functions import TransferScores
from pairloc.localization.logistic import fit_logistic
from pairloc.localization.losses import mean_loss
from pairloc.localization.sampling import Sample, draw
from pairloc.settings import TransferSettings

BACKGROUND, NEITHER = -1, -2
_LOOK = 256  # pairs of bags the held-out loss is measured on


@dataclass(frozen=True)
class Labels:
    """What the proposals of the source show."""

    shown: Tensor  # (N, B) class; BACKGROUND for none, NEITHER for in between, what does not count, and padding
    overlap: Tensor  # (N, B) IoU with the annotated box that fits best

    @classmethod
    def of(cls, shown: Tensor) -> "Labels":
        """Labels of proposals that fit perfectly or not at all."""
        return cls(shown, (shown >= 0).float())

    def without(self, bags: Tensor) -> "Labels":
        """The same with nothing known of some bags, a mask (N,)."""
        return Labels(self.shown.masked_fill(bags.to(self.shown.device)[:, None], NEITHER), self.overlap)


def label_proposals(bags: Bags, dataset: Dataset, truth: GroundTruth, settings: TransferSettings) -> Labels:
    """The class of every proposal of the source, by IoU with its annotated boxes."""
    places = dataset.places(bags.store.dataset.subset(bags.indices))
    labels, overlaps = torch.full((bags.count, bags.size), NEITHER), torch.zeros(bags.count, bags.size)
    order = np.argsort(truth.image, kind="stable")
    starts = np.searchsorted(truth.image[order], np.arange(len(dataset) + 1))
    boxes = bags.boxes.cpu()
    for row, image in enumerate(places):
        if image is None:
            raise InputError(f"{bags.store.path}: has a bag whose image is not among the source's annotations")
        own = order[starts[image] : starts[image + 1]]
        overlap = iou(boxes[row][None].double(), torch.from_numpy(truth.boxes[own]).reshape(1, -1, 4))[0]  # (B, G)
        ignored = torch.from_numpy(truth.ignored[own])
        counting = overlap.masked_fill(ignored, 0.0)
        best, place = counting.max(dim=1) if len(own) else (torch.zeros(bags.size), torch.zeros(bags.size).long())
        crowd = (overlap * ignored).amax(dim=1) if len(own) else torch.zeros(bags.size)
        labels[row] = torch.where(
            (best < settings.background_iou) & (crowd < settings.background_iou), BACKGROUND, NEITHER
        )
        overlaps[row] = best
        hit = best >= settings.foreground_iou
        if len(own):
            labels[row] = torch.where(hit, torch.from_numpy(truth.label[own])[place], labels[row])
    return Labels(labels.masked_fill(~bags.valid.cpu(), NEITHER).to(bags.device), overlaps.to(bags.device))


@dataclass(frozen=True)
class _Pairs:
    """Bags with a class each: what is foreground in them."""

    left: Tensor  # (n,)
    right: Tensor  # (n,)
    left_class: Tensor  # (n,)
    right_class: Tensor  # (n,)


class _Drawer:
    """Pairs of bags: a share of them show a class both, the others do not."""

    def __init__(self, labels: Tensor, bags: Tensor, same_class: float, seed: int) -> None:
        self.labels, self.same_class = labels, same_class
        self.random = np.random.default_rng(seed)
        table = labels[bags.to(labels.device)].cpu()
        self.shown = {
            int(bag): sorted(set(row[row >= 0].tolist())) for bag, row in zip(bags.tolist(), table, strict=True)
        }
        self.shown = {bag: classes for bag, classes in self.shown.items() if classes}
        self.bags = sorted(self.shown)
        self.of_class: dict[int, list[int]] = {}
        for bag in self.bags:
            for c in self.shown[bag]:
                self.of_class.setdefault(c, []).append(bag)

    def draw(self, count: int) -> _Pairs:
        """So many pairs."""
        rows = []
        for _ in range(count):
            left = self.bags[self.random.integers(len(self.bags))]
            c = self.shown[left][self.random.integers(len(self.shown[left]))]
            others = self.of_class[c]
            if self.random.random() < self.same_class and len(others) > 1:
                right, of_right = self._other(others, left), c
            else:
                right = self._other(self.bags, left)
                of_right = self.shown[right][self.random.integers(len(self.shown[right]))]
            rows.append((left, right, c, of_right))
        columns = torch.tensor(rows, device=self.labels.device).T
        return _Pairs(*columns)

    def _other(self, bags: list[int], than: int) -> int:
        while (found := bags[self.random.integers(len(bags))]) == than:
            pass
        return found


def learn_transfer(bags: Bags, known: Labels, settings: TransferSettings) -> tuple[TransferScores, Curve]:
    """Train psi^U and psi^P on source bags whose proposals are labelled (paper, eq. source_loss).

    The two functions share no weights, so alpha, which weighs their losses, changes nothing but their learning rates:
    each is trained by its mean loss.
    """
    labels = known.shown
    training = settings.training
    torch.manual_seed(settings.seed)
    scores = TransferScores(bags.reduction, settings).to(bags.device)
    with_object = torch.nonzero((labels >= 0).any(dim=1))[:, 0].cpu()
    shuffled = with_object[torch.from_numpy(np.random.default_rng(settings.seed).permutation(len(with_object)))]
    if len(shuffled) < 2:
        raise InputError("the source has fewer than two images whose proposals show an annotated object")
    count = min(int(len(shuffled) * training.held_out), len(shuffled) - 2)
    held, train = shuffled[:count], shuffled[count:]
    generator = torch.Generator(bags.device).manual_seed(settings.seed)
    drawer = _Drawer(labels, train, settings.same_class, settings.seed)

    def loss() -> Tensor:
        return _loss(scores, bags, labels, drawer.draw(training.pairs), generator)

    def held_out() -> Tensor:
        again = torch.Generator(bags.device).manual_seed(settings.seed + 1)
        pairs = _Drawer(labels, held, settings.same_class, settings.seed + 1).draw(_LOOK)
        return _loss(scores, bags, labels, pairs, again)

    watched = held_out if len(held) > 1 else None
    curve = descend(scores, loss, watched, training, what="transfer scores")
    if settings.unary.fit == "exact":
        _fit_unary(scores, bags, known, with_object)
    return scores, curve


@torch.no_grad()
def _fit_unary(scores: TransferScores, bags: Bags, known: Labels, with_object: Tensor) -> None:
    """psi^U on all proposals; its label says how tight a proposal is, from background_iou up to tight_iou."""
    settings = scores.settings
    low, high = settings.background_iou, settings.unary.tight_iou
    tight = ((known.overlap - low) / (high - low)).clamp(0, 1).masked_fill(known.shown == BACKGROUND, 0.0)
    counted = (known.shown != NEITHER) | (tight > 0)
    counted &= bags.valid & (known.shown > NEITHER).any(dim=1, keepdim=True)
    weight = counted.float() / counted.sum()

    def targets(some: Tensor) -> tuple[Tensor, Tensor]:
        some = some.to(bags.device)
        return tight[some][..., None], weight[some][..., None]

    start = torch.zeros(1, bags.d + 1, device=bags.device)
    scores.unary.set(fit_logistic(bags.features, targets, with_object, start, decay=settings.unary.decay))


def _loss(scores: TransferScores, bags: Bags, labels: Tensor, pairs: _Pairs, generator: torch.Generator) -> Tensor:
    settings = scores.settings
    sides = []
    for index, focus in ((pairs.left, pairs.left_class), (pairs.right, pairs.right_class)):
        own = labels[index]
        counts = (settings.training.foreground, settings.training.background)
        shown = own == focus[:, None]
        sample: Sample = draw(shown, (own != NEITHER) & ~shown, counts, generator)
        sides.append((bags.chosen(index, sample.proposals), own.gather(1, sample.proposals), sample.drawn))
    (left, left_label, left_drawn), (right, right_label, right_drawn) = sides
    related = (left_label[:, :, None] == right_label[:, None]) & (left_label >= 0)[:, :, None]
    both = left_drawn[:, :, None] & right_drawn[:, None]
    pair = mean_loss(scores.relation(left, right)[..., 0], related, both)
    if settings.unary.fit == "exact":
        return pair
    is_object = torch.cat([left_label, right_label]) >= 0
    drawn = torch.cat([left_drawn, right_drawn])
    return pair + mean_loss(scores.unary(torch.cat([left, right]))[..., 0], is_object, drawn)
