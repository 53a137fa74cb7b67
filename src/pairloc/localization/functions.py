"""The score functions of both sides, as they are trained, kept and mixed."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from pairloc.bags.geometry import GEOMETRY
from pairloc.bags.reduction import Reduction
from pairloc.errors import InputError
from pairloc.io import first_problem, read_json, write_json, write_tensors
from pairloc.migration import migrated
from pairloc.scores import PAIR_FUNCTIONS, PairFunction, UnaryScores
from pairloc.settings import LocalizationSettings, PairSettings, TransferSettings

WEIGHTS, SETTINGS = "transfer.safetensors", "transfer.json"


def pair_function(d: int, classes: int, settings: PairSettings) -> PairFunction:
    """psi^P as the settings name it, untrained."""
    return PAIR_FUNCTIONS[settings.kind](d, classes)


class TransferScores(nn.Module):
    """psi^U and psi^P, and the reduction of the features they were learned on."""

    def __init__(self, reduction: Reduction, settings: TransferSettings) -> None:
        super().__init__()
        self.reduction, self.settings = reduction, settings
        d = reduction.d + (GEOMETRY if settings.features.geometry else 0)
        self.unary = UnaryScores(d)
        self.relation = pair_function(d, 1, settings.pairs)

    def save(self, folder: Path) -> None:
        """Write weights and settings."""
        tensors = {"reduction.mean": self.reduction.mean, "reduction.matrix": self.reduction.matrix}
        write_tensors(folder / WEIGHTS, tensors | self.state_dict())
        write_json(folder / SETTINGS, self.settings.model_dump(mode="json"), indent=1)

    @classmethod
    def load(cls, folder: Path) -> "TransferScores":
        """Read what `save` wrote, or what it wrote before settings were grouped."""
        from pydantic import ValidationError

        content = read_json(folder / SETTINGS)
        try:
            settings = TransferSettings.model_validate(
                migrated("transfer", content) if isinstance(content, dict) else content
            )
            tensors = {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
            if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
                raise InputError(f"{folder}: its transfer scores are not finite numbers")
            mean, matrix = tensors.pop("reduction.mean"), tensors.pop("reduction.matrix")
            if mean.ndim != 1 or matrix.ndim != 2 or len(mean) != len(matrix):
                raise InputError(f"{folder}: does not hold transfer scores (its reduction does not fit together)")
            scores = cls(Reduction(mean, matrix), settings)
            scores.load_state_dict(tensors)
        except ValidationError as error:
            raise InputError(f"{folder / SETTINGS}: {first_problem(error)}") from error
        except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
            raise InputError(f"{folder}: does not hold transfer scores ({str(error).splitlines()[0][:120]})") from error
        return scores.eval()


class ClassScores(nn.Module):
    """psi^U_c and psi^P_c of all classes; the embedding of pairs is shared."""

    def __init__(self, d: int, classes: int, settings: LocalizationSettings) -> None:
        super().__init__()
        self.unary = UnaryScores(d, classes)
        self.relation = pair_function(d, classes, settings.pairs)
