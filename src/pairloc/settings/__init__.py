"""Settings: typed, frozen and grouped; unknown keys are errors.

The defaults are the recommended values. Names of solvers, backbones, methods and the like are checked against their
registries when a run is planned, so this module imports none of them.
"""

from pairloc.settings.base import NO_EFFECT, Device, Settings
from pairloc.settings.baselines import DeselaersSettings, LsdaSettings, MiSvmSettings, TangSettings
from pairloc.settings.detector import ExtractSettings, FineTuneSettings, ProposerSettings
from pairloc.settings.evidence import EvidenceSettings
from pairloc.settings.learning import (
    FeatureSettings,
    PairSettings,
    TrainingSettings,
    TransferSettings,
    TransferUnarySettings,
)
from pairloc.settings.localization import (
    BoxSettings,
    ClassTrainingSettings,
    ClassUnarySettings,
    EnergySettings,
    LocalizationSettings,
    SolverSettings,
)
from pairloc.settings.run import DataSettings, RunSettings, SceneSettings
from pairloc.settings.snapping import SnapSettings

__all__ = [
    "NO_EFFECT",
    "BoxSettings",
    "ClassTrainingSettings",
    "ClassUnarySettings",
    "DataSettings",
    "DeselaersSettings",
    "Device",
    "EnergySettings",
    "EvidenceSettings",
    "ExtractSettings",
    "FeatureSettings",
    "FineTuneSettings",
    "LocalizationSettings",
    "LsdaSettings",
    "MiSvmSettings",
    "PairSettings",
    "ProposerSettings",
    "RunSettings",
    "SceneSettings",
    "Settings",
    "SnapSettings",
    "SolverSettings",
    "TangSettings",
    "TrainingSettings",
    "TransferSettings",
    "TransferUnarySettings",
]
