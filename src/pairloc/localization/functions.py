"""The score functions as modules: transfer scores, learned on the source, and class scores, learned on the target."""

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
    """Build the untrained pair score psi^P that the settings name."""
    return PAIR_FUNCTIONS[settings.kind](d, classes)


class TransferScores(nn.Module):
    """The transfer scores psi^U and psi^P, with the reduction of the features they were trained on."""

    def __init__(self, reduction: Reduction, settings: TransferSettings) -> None:
        super().__init__()
        self.reduction, self.settings = reduction, settings
        d = reduction.d + (GEOMETRY if settings.features.geometry else 0)
        self.unary = UnaryScores(d)
        self.relation = pair_function(d, 1, settings.pairs)

    def save(self, folder: Path) -> None:
        """Write weights and settings to a folder."""
        tensors = {"reduction.mean": self.reduction.mean, "reduction.matrix": self.reduction.matrix}
        write_tensors(folder / WEIGHTS, tensors | self.state_dict())
        write_json(folder / SETTINGS, self.settings.model_dump(mode="json"), indent=1)

    @classmethod
    def load(cls, folder: Path) -> "TransferScores":
        """Read what `save` of this or an earlier version wrote.

        Raises an InputError if a file is missing, damaged or does not match the settings.
        """
        from pydantic import ValidationError

        content = read_json(folder / SETTINGS)
        try:
            settings = TransferSettings.model_validate(
                migrated("transfer", content) if isinstance(content, dict) else content
            )
            tensors = {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
            if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
                raise InputError(f"{folder / WEIGHTS}: the transfer scores are not finite numbers")
            mean, matrix = tensors.pop("reduction.mean"), tensors.pop("reduction.matrix")
            if mean.ndim != 1 or matrix.ndim != 2 or len(mean) != len(matrix):
                raise InputError(f"{folder}: does not hold transfer scores (shapes of its reduction do not match)")
            scores = cls(Reduction(mean, matrix), settings)
            scores.load_state_dict(tensors)
        except ValidationError as error:
            raise InputError(f"{folder / SETTINGS}: {first_problem(error)}") from error
        except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
            raise InputError(f"{folder}: does not hold transfer scores ({str(error).splitlines()[0][:120]})") from error
        return scores.eval()


class ClassScores(nn.Module):
    """The class scores psi^U_c and psi^P_c of all target classes; the embedding of pairs is shared."""

    def __init__(self, d: int, classes: int, settings: LocalizationSettings) -> None:
        super().__init__()
        self.unary = UnaryScores(d, classes)
        self.relation = pair_function(d, classes, settings.pairs)
