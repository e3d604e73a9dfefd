"""The search of one's own in docs/extending.md, as a reader copies it."""

import re
from pathlib import Path

import torch

from attacks.optimization import Cosine

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def the_example():
    found = re.search(
        r"```python\n(?P<code>(?:(?!```).)*class MySearch.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    scope = {}
    exec(found["code"], scope)
    return scope["MySearch"]


def distance(observation, image):
    model = observation.build_model()
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (observation.mean, observation.std))
    loss = torch.nn.functional.cross_entropy(model((image - mean) / std), torch.tensor([3]))
    own = dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True))
    return float(Cosine()(own, {name: tensor.float() for name, tensor in observation.gradient.items()}))


def test_it_matches_the_gradient(tools, cpu):
    observation = tools.observe(tools.tiny(kwargs={"depth": 2}), tools.photographs(32)[:1], [3])
    search = the_example()
    start, end = (search(steps=steps).run(observation, torch.Generator().manual_seed(0), cpu) for steps in (0, 40))
    assert end.labels.tolist() == [3]
    assert end.images.shape == (1, 3, 32, 32)
    assert distance(observation, end.images) < 0.5 * distance(observation, start.images)
