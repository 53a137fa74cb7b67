"""Checkpoints of detector training: all that the next epoch needs, and hashes that identify the training run."""

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torchvision.models.detection import FasterRCNN

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.detector.model import CHECKPOINT
from pairloc.errors import InputError
from pairloc.io import REMEDY, reason, write_tensors
from pairloc.settings import ProposerSettings


class Checkpoint:
    """The state after the last finished epoch, stored with the settings and a hash of the training data.

    `chosen` lists the indices of the training images.
    """

    def __init__(
        self, folder: Path, settings: ProposerSettings, dataset: Dataset, truth: GroundTruth, chosen: list[int]
    ) -> None:
        self.folder, self.file = folder, folder / CHECKPOINT
        self.settings = json.dumps(settings.cache_key(), sort_keys=True)
        self.data = _fingerprint(dataset, truth, chosen)

    def write(self, model: FasterRCNN, optimizer: torch.optim.Optimizer, epoch: int) -> None:
        """Write the state after `epoch` epochs; it replaces the previous checkpoint."""
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        for index, entry in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in entry.items()}
        write_tensors(self.file, tensors, {"epoch": str(epoch), "settings": self.settings, "data": self.data})

    def resume(self, model: FasterRCNN, optimizer: torch.optim.Optimizer, device: str) -> int:
        """Load the checkpoint into model and optimizer if there is one, and return the number of finished epochs.

        Raises an InputError if it belongs to other settings or data, or is damaged.
        """
        if not self.file.is_file():
            return 0
        try:
            with safe_open(self.file, framework="pt", device=device) as stored:
                facts = stored.metadata() or {}
                if facts.get("settings") != self.settings:
                    raise InputError(f"{self.folder}: holds a training with other settings; {REMEDY}")
                if facts.get("data") != self.data:
                    raise InputError(f"{self.folder}: holds a training on other data; {REMEDY}")
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
            optimizer.load_state_dict(optimizer.state_dict() | {"state": _optimizer_state(tensors)})
            return int(facts["epoch"])
        except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
            raise InputError(f"{self.file}: is damaged ({reason(error)}); delete it to train from the start") from error


def _optimizer_state(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, entry = name.split(".")
            state.setdefault(int(index), {})[entry] = tensor
    return state


def _fingerprint(dataset: Dataset, truth: GroundTruth, chosen: list[int]) -> str:
    """Hash the training data: classes, images and boxes."""
    names = json.dumps([dataset.classes, [dataset.images[index].file for index in chosen]])
    columns = (truth.image, truth.label, truth.boxes, truth.ignored)
    return hashlib.sha256(names.encode() + b"".join(column.tobytes() for column in columns)).hexdigest()
