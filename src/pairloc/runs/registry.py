"""The stages of a run in order, with their dependencies, and the check of all names in the settings."""

import hashlib
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pairloc.bags.features import check_class_features
from pairloc.detector.backbones import check_backbone
from pairloc.detector.model import SETTINGS as PROPOSER_SETTINGS
from pairloc.detector.model import WEIGHTS as PROPOSER
from pairloc.errors import InputError
from pairloc.formats.reading import FORMATS
from pairloc.inference import SOLVERS
from pairloc.io import sha256
from pairloc.localization.baselines.source_classifiers import NAMES as CLASSIFIER_NAMES
from pairloc.localization.baselines.source_classifiers import WEIGHTS as CLASSIFIER_WEIGHTS
from pairloc.localization.combination import FILE as COMBINATION
from pairloc.localization.confidence import FILE as CALIBRATION
from pairloc.localization.functions import SETTINGS as TRANSFER_SETTINGS
from pairloc.localization.functions import WEIGHTS as TRANSFER
from pairloc.localization.learned import CLASSIFIERS, EVIDENCE
from pairloc.localization.methods import METHODS, check_method
from pairloc.runs import stages
from pairloc.runs.learning import AGNOSTIC
from pairloc.runs.results import PUBLISHED, RESULTS
from pairloc.runs.stage import Stage
from pairloc.scores import PAIR_FUNCTIONS
from pairloc.settings import LocalizationSettings, RunSettings, Settings, TransferSettings
from pairloc.weights import weights_folder

_TRANSFER_FILES = (f"transfer/{TRANSFER}", f"transfer/{TRANSFER_SETTINGS}")
_WEIGHED = (COMBINATION, CALIBRATION)
FINE_TUNED, SNAPPED = "fine-tuned", "snapped"  # methods with a network of their own: stages around the engine


def stages_of(settings: RunSettings, weights: Path | None) -> dict[str, Stage]:
    """Return the stages of a run by name, in order."""
    data, localization = settings.data, _key(settings.localization)
    scenes = data.scenes and _key(data.scenes)
    source = [_hash(data.source), str(data.source_images), data.source_format, scenes]
    target = [_hash(data.target), str(data.target_images), data.target_format]
    proposer_key = [_key(settings.proposer), _hash(settings.proposer.backbone_weights), source]
    prepared = Stage("data", stages.prepare, settings=[source, target])
    if weights is not None:
        proposer = _proposer_hashes(weights, settings)
        files = (*_TRANSFER_FILES, f"calibration/{CALIBRATION}", f"{EVIDENCE}/{COMBINATION}")
        classifiers = [_hash(weights / CLASSIFIERS / file) for file in (CLASSIFIER_WEIGHTS, CLASSIFIER_NAMES)]
        learned = [_hash(weights / file) for file in files]
        planned = [prepared, Stage("bags", stages.extract_bags, ("data",), [_key(settings.extract), proposer])]
        method_inputs: tuple[str, ...] = ("bags",)
    else:
        transfer, learned = _key(settings.transfer), []
        proposers = ("data", "proposer", *((AGNOSTIC,) if settings.extract.agnostic_boxes else ()))
        planned = [
            prepared,
            Stage("proposer", stages.train_proposer, (), proposer_key, results=(PROPOSER,)),
            *(
                [Stage(AGNOSTIC, stages.train_agnostic, (), proposer_key, results=(PROPOSER,))]
                if settings.extract.agnostic_boxes
                else []
            ),
            Stage("bags", stages.extract_bags, proposers, [_key(settings.extract), settings.transfer.images]),
            Stage("transfer", stages.learn_scores, ("bags",), transfer, results=(TRANSFER,)),
        ]
        method_inputs = ("bags", "transfer")
        calibration_inputs: tuple[str, ...] = ("bags",)
        if _learns_evidence(settings):
            taught = _never_taught_hashes(settings)
            alone = settings.evidence.model_copy(update={"weights": None, "draws": 1})  # content counts, and one draw
            evidence, playing = _key(alone), stages.playing_stages(settings)
            key = [proposer_key, _key(settings.extract), transfer, evidence, taught]
            planned += [
                *(
                    Stage(name, partial(stages.play, draw), ("data",), key)
                    for draw, name in enumerate(playing, start=1)
                ),
                Stage(EVIDENCE, stages.learn_evidence, ("data", *playing), localization, results=_WEIGHED),
            ]
            method_inputs, calibration_inputs = (*method_inputs, EVIDENCE), ("bags", EVIDENCE)
        if settings.calibrate:
            key = [transfer, localization]
            planned.append(Stage("calibration", stages.calibrate_confidence, calibration_inputs, key))
            method_inputs = (*method_inputs, "calibration")
        classifiers = []
        if any(_needs_classifiers(method) for method in settings.methods):
            work = stages.learn_source_classifiers
            planned.append(
                Stage(CLASSIFIERS, work, ("bags", "transfer"), results=(CLASSIFIER_WEIGHTS, CLASSIFIER_NAMES))
            )
    planned += [_method_stage(method, settings, method_inputs, learned, classifiers) for method in settings.methods]
    results = ("data", "bags", *settings.methods)
    planned.append(Stage("evaluation", stages.evaluate, results, _hash(data.truth), kept=False))
    least = settings.min_confidence or None  # None, as in runs from before there was this setting
    planned.append(Stage("report", stages.report, (*results, "evaluation"), least, kept=False, publishes=PUBLISHED))
    return {stage.name: replace(stage, title=stages.title_of(stage.name, settings)) for stage in planned}


def _method_stage(
    method: str, settings: RunSettings, inputs: tuple[str, ...], learned: Any, classifiers: list[str]
) -> Stage:
    """The stage of a method; `inputs` and `learned` are what all methods of the engine depend on."""
    if method == FINE_TUNED:
        return Stage(method, stages.fine_tune, ("full",), _key(settings.fine_tune), results=RESULTS)
    if method == SNAPPED:
        return Stage(method, stages.snap, (stages.before_snapping(settings),), _key(settings.snap))
    key = [_key(METHODS[method].section(settings)), learned]
    if _needs_classifiers(method):
        key += [classifiers, _hash(settings.tang.semantic_table)]
        inputs = inputs if settings.weights is not None else (*inputs, CLASSIFIERS)
    return Stage(method, partial(stages.run_method, method), inputs, key, results=RESULTS)


def _learns_evidence(settings: RunSettings) -> bool:
    """Whether a method weighs evidence as it is learned on the source."""
    alternating = METHODS["full"].section
    uses = any(METHODS[method].section is alternating for method in settings.methods if method in METHODS)
    return uses and settings.localization.unary.combination == "learned"


def _proposer_hashes(weights: Path, settings: RunSettings) -> list[str]:
    networks = ("proposer", *((AGNOSTIC,) if settings.extract.agnostic_boxes else ()))
    return [_hash(weights / name / file) for name in networks for file in (PROPOSER, PROPOSER_SETTINGS)]


def _never_taught_hashes(settings: RunSettings) -> list[str]:
    """Hashes of the weights that were not taught some classes; a missing folder is reported when the run starts."""
    try:
        folder = None if settings.evidence.weights is None else weights_folder(str(settings.evidence.weights))
    except InputError:
        folder = None
    files = () if folder is None else (folder / file for file in _TRANSFER_FILES)
    return [] if folder is None else [*_proposer_hashes(folder, settings), *map(_hash, files)]


def _needs_classifiers(method: str) -> bool:
    return method in METHODS and METHODS[method].needs_classifiers


def check_names(settings: RunSettings) -> None:
    """Raise an InputError if a solver, pair score, feature, backbone, format or method does not exist."""
    for method in settings.methods:
        if method not in (FINE_TUNED, SNAPPED):
            check_method(method)
    check_learning(settings.transfer, settings.localization)
    for key in ("source_format", "target_format"):
        _check_name(f"data.{key}", getattr(settings.data, key), {"auto": "", **FORMATS})
    check_class_features(settings.extract.class_features)
    if settings.weights is None:
        check_backbone(settings.proposer.backbone)


def check_learning(transfer: TransferSettings, localization: LocalizationSettings) -> None:
    """Raise an InputError if a solver or pair score does not exist."""
    _check_name("localization.solver.name", localization.solver.name, SOLVERS)
    _check_name("localization.pairs.kind", localization.pairs.kind, PAIR_FUNCTIONS)
    _check_name("transfer.pairs.kind", transfer.pairs.kind, PAIR_FUNCTIONS)


def _check_name(key: str, name: str, registry: Any) -> None:
    if name not in registry:
        raise InputError(f"{key}: there is no {name!r}; known are {', '.join(registry)}")


def _key(settings: Settings) -> Any:
    return settings.cache_key()


def _hash(path: Path | None) -> str:
    """Return the hash of an input: of the content of a file, or of the names, sizes and times in a folder."""
    if path is None or not path.exists():
        return ""
    if path.is_file():
        return sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    listed = [(str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()
