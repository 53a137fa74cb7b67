"""The score functions of both sides, as they are trained, kept and mixed."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from pairloc.bags.geometry import GEOMETRY
from pairloc.bags.reduction import Reduction
from pairloc.errors import InputError
from pairloc.io import read_json, write_json, write_tensors
from pairloc.scores.cosine import CosineScores
from pairloc.scores.relation import RelationScores
from pairloc.scores.unary import UnaryScores
from pairloc.settings import DescentSettings, LearningSettings, TransferSettings

WEIGHTS, SETTINGS = "transfer.safetensors", "transfer.json"


def pair_function(d: int, classes: int, settings: DescentSettings) -> RelationScores | CosineScores:
    """psi^P as the settings name it, untrained."""
    if settings.relation == "cosine":
        return CosineScores(d, classes)
    return RelationScores(d, classes, settings.relation)


class TransferScores(nn.Module):
    """psi^U and psi^P, and the reduction of the features they were learned on."""

    def __init__(self, reduction: Reduction, settings: TransferSettings) -> None:
        super().__init__()
        self.reduction, self.settings = reduction, settings
        d = reduction.d + (GEOMETRY if settings.geometry else 0)
        self.unary = UnaryScores(d)
        self.relation = pair_function(d, 1, settings)

    def save(self, folder: Path) -> None:
        """Write weights and settings."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {"reduction.mean": self.reduction.mean, "reduction.matrix": self.reduction.matrix}
        write_tensors(folder / WEIGHTS, tensors | self.state_dict())
        write_json(folder / SETTINGS, self.settings.model_dump(), indent=1)

    @classmethod
    def load(cls, folder: Path) -> "TransferScores":
        """Read what `save` wrote."""
        content = read_json(folder / SETTINGS)
        try:
            settings = TransferSettings.model_validate(content)
            tensors = {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
            scores = cls(Reduction(tensors.pop("reduction.mean"), tensors.pop("reduction.matrix")), settings)
            scores.load_state_dict(tensors)
        except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
            raise InputError(f"{folder}: does not hold transfer scores ({str(error).splitlines()[0][:120]})") from error
        return scores.eval()


class ClassScores(nn.Module):
    """psi^U_c and psi^P_c of all classes; the embedding of pairs is shared."""

    def __init__(self, d: int, classes: int, settings: LearningSettings) -> None:
        super().__init__()
        self.unary = UnaryScores(d, classes)
        self.relation = pair_function(d, classes, settings)
