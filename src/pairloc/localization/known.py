"""Known classes: what the proposer recognises by name in the images of the target.

The last layer of the proposer is linear, so the probabilities of its classes follow from the features in the bags.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import BaseModel
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pairloc.bags.tensors import Bags
from pairloc.detector.compact import restored
from pairloc.detector.model import SETTINGS, WEIGHTS
from pairloc.errors import InputError
from pairloc.io import read_model, reason

_LAYER = "roi_heads.box_predictor.cls_score"
_BATCH = 256  # bags at a time


class _Taught(BaseModel):
    """The part of a proposer's settings file that is needed here."""

    classes: tuple[str, ...]


@dataclass(frozen=True)
class KnownClasses:
    """The classes a proposer was taught, and the layer that tells them apart; the first row is background."""

    names: tuple[str, ...]  # C
    weight: Tensor  # (C + 1, d) on the features of the proposer's box head
    bias: Tensor  # (C + 1,)

    def to(self, device: str | torch.device) -> "KnownClasses":
        """Copy the layer to a device."""
        return KnownClasses(self.names, self.weight.to(device), self.bias.to(device))

    @classmethod
    def load(cls, proposer: Path) -> "KnownClasses | None":
        """Read them from the folder of a proposer; None if there is none, or it knows objects only, not classes.

        Raises an InputError if the file is damaged.
        """
        if not (proposer / WEIGHTS).is_file() or not (proposer / SETTINGS).is_file():
            return None
        names = read_model(proposer / SETTINGS, _Taught).classes
        try:
            with safe_open(proposer / WEIGHTS, framework="pt") as stored:
                names_of_layer = [name for name in list(stored.keys()) if name.startswith(_LAYER)]
                layer = restored({name: stored.get_tensor(name) for name in names_of_layer})
            weight, bias = (layer[f"{_LAYER}.{name}"].float() for name in ("weight", "bias"))
        except (KeyError, TypeError, OSError, SafetensorError) as error:
            raise InputError(f"{proposer}: does not hold a proposer ({reason(error)})") from error
        return cls(names, weight, bias) if len(weight) == len(names) + 1 else None

    @torch.no_grad()
    def probabilities(self, bags: Bags) -> Tensor | None:
        """Probability of every known class for every proposal: (N, B, C) in half precision, zeros in the padding.

        None if the bags were imported, with other features than those of the proposer.
        """
        found = torch.zeros(bags.count, bags.size, len(self.names), dtype=torch.float16, device=bags.device)
        for start in range(0, bags.count, _BATCH):
            rows = torch.arange(start, min(start + _BATCH, bags.count))
            features = bags.box_head_features(rows)  # (n, B, d)
            if features.shape[2] != self.weight.shape[1]:
                return None
            found[start : start + _BATCH] = torch.softmax(features @ self.weight.T + self.bias, dim=2)[..., 1:].half()
        return found * bags.valid[..., None]
