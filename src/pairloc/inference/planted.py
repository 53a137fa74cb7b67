"""Synthetic problems with a planted common object, for tests and benchmarks."""

import numpy as np
import numpy.typing as npt

from pairloc.inference.problem import Problem

Floats = npt.NDArray[np.float64]
_CLASSES = 60  # many, so that other objects of the same class seldom recur


def planted_bags(
    bags: int, proposals: int, generator: np.random.Generator, *, d: int = 32, spread: float = 0.6
) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Bags that share one object: unary scores (M, B), unit features (M, B, d) and the object's proposal (M,).

    About 30% of the other proposals show an object of another class; the rest have random features. `spread` is the
    standard deviation of the features within a class.
    """
    features = generator.normal(size=(bags, proposals, d))
    centres = generator.normal(size=(_CLASSES, d))
    object_class = generator.integers(1, _CLASSES, (bags, proposals))
    is_object = generator.random((bags, proposals)) < 0.3
    truth = generator.integers(0, proposals, bags)
    object_class[np.arange(bags), truth], is_object[np.arange(bags), truth] = 0, True
    objects = centres[object_class] + spread * generator.normal(size=features.shape)
    features = np.where(is_object[..., None], objects, features)
    unary = generator.normal(size=(bags, proposals)) + is_object
    return unary, features / np.linalg.norm(features, axis=2, keepdims=True), truth


def planted_problem(
    bags: int, proposals: int, generator: np.random.Generator, *, spread: float = 0.6
) -> tuple[Problem, npt.NDArray[np.int64]]:
    """The labelling problem of `planted_bags`, and the planted labelling (M,)."""
    unary, features, truth = planted_bags(bags, proposals, generator, spread=spread)
    pairs = ((i, j) for i in range(bags) for j in range(i + 1, bags))
    return Problem(-unary, {(i, j): 2 - 4 * features[i] @ features[j].T for i, j in pairs}), truth
