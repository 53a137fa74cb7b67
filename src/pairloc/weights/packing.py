"""Make small weights from those of a run: a folder to keep, to pass on, or to package."""

from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file

from pairloc.detector.compact import compacted
from pairloc.detector.model import SETTINGS as PROPOSER
from pairloc.detector.model import WEIGHTS, Proposer
from pairloc.errors import InputError
from pairloc.io import claim_folder, read_json, write_json, write_tensors
from pairloc.localization.combination import Combination
from pairloc.localization.confidence import Calibration
from pairloc.localization.functions import WEIGHTS as SCORES
from pairloc.localization.learned import CALIBRATION, EVIDENCE, TRANSFER, Learned
from pairloc.weights import EXTRACT, SETTINGS, extract_of, localization_of, weights_folder
from pairloc.weights.catalogue import write_hashes

_PROPOSERS = ("proposer", "agnostic-proposer")


def make(source: str, out: Path, *, evidence: Path | None = None) -> None:
    """Write the weights of a run, or those that `Localizer.save` wrote, into a folder, in a quarter of the space.

    Weights of networks get one byte each (`detector/compact.py`), those of the transfer scores two. `evidence` names
    a folder whose learned evidence and confidence replace those of the source.

    Raises an InputError if the source is no folder of weights or is damaged, or `out` contains other files.
    """
    folder = weights_folder(source)
    learned = Learned.load(folder)
    if evidence is not None:
        combination = Combination.load(evidence / EVIDENCE)
        if combination is None:
            raise InputError(f"{evidence}: has no learned evidence")
        learned = replace(learned, combination=combination, calibration=Calibration.load(evidence / CALIBRATION))
    proposers = {name: Proposer.load(folder / name) for name in _PROPOSERS if (folder / name).is_dir()}
    localization, extraction = localization_of(source), extract_of(source)
    claim_folder(out, SETTINGS)
    for name, proposer in proposers.items():
        write_tensors(out / name / WEIGHTS, compacted(proposer.model.state_dict()))
        write_json(out / name / PROPOSER, read_json(folder / name / PROPOSER), indent=1)
    learned.save(out)
    scores = load_file(out / TRANSFER / SCORES)
    write_tensors(out / TRANSFER / SCORES, {name: tensor.half() for name, tensor in scores.items()})
    write_json(out / SETTINGS, localization.model_dump(mode="json"), indent=1)
    write_json(out / EXTRACT, extraction.model_dump(mode="json"), indent=1)
    write_hashes(out)
