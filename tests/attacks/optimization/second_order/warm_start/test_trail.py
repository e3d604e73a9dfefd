"""What a warm start has gone of its way."""

import json

import torch

from attacks.optimization.second_order.warm_start import Trail


def test_it_comes_back_from_tensors_and_text():
    trail = Trail()
    trail.add("race/3/0", torch.tensor([1.0, 2.0]), False, None)
    trail.add("order/0", torch.tensor([3.0, 4.0]), True, None)
    trail.anchor, trail.rough, trail.spent = torch.tensor([5.0]), False, 7
    restored = Trail()
    restored.restore(trail.tensors(), json.loads(json.dumps(trail.record())), torch.device("cpu"))
    assert restored.ends.keys() == trail.ends.keys()
    assert torch.equal(restored.ends["race/3/0"][0], torch.tensor([1.0, 2.0]))
    assert [enough for _, enough in restored.ends.values()] == [False, True]
    assert torch.equal(restored.anchor, trail.anchor)
    assert (restored.rough, restored.spent) == (False, 7)
