"""Attacks that search among the pictures of a generator: GIAS, GIFD, GGL, and what it gives without a gradient."""

from attacks.generative.generator import Generator
from attacks.generative.gradient_free import GGL
from attacks.generative.samples import GeneratorSamples
from attacks.generative.spaces import GeneratorLatent
from attacks.generative.staged import GIAS, GIFD

__all__ = ["GGL", "GIAS", "GIFD", "Generator", "GeneratorLatent", "GeneratorSamples"]
