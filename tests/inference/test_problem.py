from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairloc.inference import Problem, solve
from referees import all_labellings, problems


@pytest.mark.parametrize(
    ("unary", "pairwise", "message"),
    [
        ([[]], {}, "node 0: has no label"),
        ([[1.0], [np.nan]], {}, "node 1: has a potential that is not finite"),
        ([[[1.0]]], {}, "node 0: its potentials have shape"),
        ([[1.0], [1.0]], {(0, 1): [[np.inf]]}, r"edge \(0, 1\): has a potential that is not finite"),
        ([[1.0], [1.0]], {(0, 1): [[1.0, 2.0]]}, r"edge \(0, 1\): its table is \(1, 2\), not \(1, 1\)"),
        ([[1.0], [1.0]], {(0, 2): [[1.0]]}, r"edge \(0, 2\): does not join"),
        ([[1.0], [1.0]], {(1, 1): [[1.0]]}, r"edge \(1, 1\): does not join"),
        ([[1.0], [1.0]], {(0.0, 1.0): [[1.0]]}, r"edge \(0.0, 1.0\): is not a pair of nodes"),
        ([["a"]], {}, "node 0: its potentials are not an array of numbers"),
    ],
)
def test_bad_potentials_name_the_node_or_edge(
    unary: list[list[float]], pairwise: dict[tuple[int, int], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Problem(unary, pairwise)  # type: ignore[arg-type]


def test_labels_out_of_range() -> None:
    problem = Problem([[1.0, 2.0], [3.0]], {})
    assert problem.energy([1, 0]) == 5.0
    with pytest.raises(ValueError, match="node 1: label 1 is out of range; the node has 1 labels"):
        problem.energy([0, 1])


def test_an_edge_given_in_both_directions_is_one_edge() -> None:
    problem = Problem([[0.0, 0.0], [0.0] * 3], {(0, 1): np.ones((2, 3)), (1, 0): np.arange(6.0).reshape(3, 2)})
    assert problem.edges == ((0, 1),)
    assert problem.energy([1, 2]) == 6.0


@settings(max_examples=30, deadline=None)
@given(problems(nodes=4, labels=3))
def test_a_uai_round_trip_keeps_the_energies(tmp_path_factory: pytest.TempPathFactory, problem: Problem) -> None:
    file = tmp_path_factory.mktemp("uai") / "x.uai"
    problem.to_uai(file)
    again = Problem.from_uai(file)
    for labels in all_labellings(problem):
        assert again.energy(labels) == pytest.approx(problem.energy(labels), abs=1e-9)


def test_toulbar2_reads_our_uai_files(tmp_path: Path) -> None:
    import pytoulbar2

    generator = np.random.default_rng(0)
    problem = Problem(generator.normal(size=(4, 3)), {(0, 1): generator.normal(size=(3, 3)), (1, 3): np.eye(3)})
    problem.to_uai(tmp_path / "x.uai")
    network = pytoulbar2.CFN(verbose=-1)
    network.Read(str(tmp_path / "x.uai"))
    assert problem.energy(network.Solve()[0]) == pytest.approx(solve(problem, "exact").energy, abs=1e-4)


def test_factors_are_multiplied_and_transposed_and_zeros_forbid_labels(tmp_path: Path) -> None:
    file = tmp_path / "x.uai"
    file.write_text("MARKOV 2 2 3 4  1 0  2 1 0  2 0 1  0   2 0.5 0  6 1 2 3 4 5 6  6 1 1 1 1 1 1  1 7.0")
    problem = Problem.from_uai(file)
    assert problem.sizes == (2, 3)
    expected = -np.log(0.5) - np.log(3.0) - np.log(7.0)
    assert problem.energy([0, 1]) == pytest.approx(expected)
    best = solve(problem, "exact")
    assert best.labels.tolist() == [0, 2]
    assert min(problem.energy([1, x]) for x in range(3)) > max(problem.energy([0, x]) for x in range(3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a UAI file"),
        ("BAYES 1 2 0", "not a UAI file of type MARKOV"),
        ("MARKOV 1 0 0", "a number of labels, found '0'"),
        ("MARKOV 2 2 2 1 3 0 1 1", "does not fit|joins 3 nodes"),
        ("MARKOV 2 2 2 1 2 0 5 4 1 1 1 1", r"scope \[0, 5\]"),
        ("MARKOV 1 2 1 1 0 3 1 1 1", "does not have the 2 entries its scope needs"),
        ("MARKOV 1 2 1 1 0 2 1", "truncated"),
        ("MARKOV 1 2 1 1 0 2 1 x", "contains a non-number"),
        ("MARKOV 1 2 1 1 0 2 1 -1", "negative or not finite"),
        ("MARKOV 1 2 1 1 0 2 1 1 9", "1 extra words"),
        ("MARKOV", "the number of nodes, found 'the end of the file'"),
    ],
)
def test_malformed_uai_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "x.uai"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        Problem.from_uai(file)
    assert str(file) in str(caught.value)


def test_potentials_too_large_for_uai(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="node 1: has a potential beyond 700"):
        Problem([[0.0], [1000.0]], {}).to_uai(tmp_path / "x.uai")


@settings(max_examples=100, deadline=None)
@given(st.text("MARKOV 0123456789.-e\n", max_size=80))
def test_random_text_is_read_or_rejected_in_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.uai"
    file.write_text("MARKOV " + text)
    try:
        Problem.from_uai(file)
    except ValueError as error:
        assert len(str(error).splitlines()) == 1
