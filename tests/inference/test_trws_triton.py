"""The GPU kernel, run by Triton's interpreter, against the plain torch sweeps."""

import pytest
import torch

from pairloc.inference.batch import Batch
from pairloc.inference.trws import Sweeps
from pairloc.inference.trws_triton import TritonSweeps


@pytest.mark.parametrize("labels", [1, 5, 19, 130])
def test_messages_equal_those_of_the_plain_sweeps(labels: int) -> None:
    generator = torch.Generator().manual_seed(labels)
    edges = ((0, 1), (0, 3), (1, 2), (1, 3), (2, 3))
    batch = Batch(
        torch.randn(2, 4, labels, generator=generator), edges, torch.randn(2, 5, labels, labels, generator=generator)
    )
    batch.unary[0, 1, labels // 2 + 1 :] = torch.inf
    plain, fast = Sweeps(batch), TritonSweeps(batch)
    for _ in range(2):
        for sweeps in (plain, fast):
            sweeps.forward()
        (bound, beliefs), (fast_bound, fast_beliefs) = plain.backward(), fast.backward()
        torch.testing.assert_close(fast_bound, bound)
        torch.testing.assert_close(fast_beliefs, beliefs)
        torch.testing.assert_close(fast.into_higher, plain.into_higher)
        torch.testing.assert_close(fast.into_lower, plain.into_lower)
    assert torch.equal(plain.decode(), fast.decode())
