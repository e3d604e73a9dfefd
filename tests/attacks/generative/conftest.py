import pytest


@pytest.fixture
def painter():
    """`painter(…)`: a generator of 16 px pictures with random weights; the same for the same settings."""

    def make(latent=6, num_classes=0, trained_on=(), side=16):
        import torch

        from fedsim.determinism import seeded_globals
        from fedsim.models.generator import ConvGenerator

        with seeded_globals(0, "painter"):
            generator = ConvGenerator(latent, side, (16, 8), num_classes)
            with torch.no_grad():
                # Random weights as they come make nearly grey pictures.
                for parameter in generator.parameters():
                    parameter.mul_(2.0)
        generator.trained_on[list(trained_on)] = True
        return generator

    return make


@pytest.fixture
def checkpoint(painter, tmp_path):
    from fedsim.models.generator import save_generator

    path = tmp_path / "generator.safetensors"
    save_generator(painter(), path)
    return path


@pytest.fixture
def small(tools):
    """One block, 16 patches, width 48: an observation of `count` photographs."""

    def make(count=1, labels=(3, 5)):
        spec = tools.tiny(img_size=16, patch_size=4, kwargs={"depth": 1, "embed_dim": 48, "num_heads": 3})
        pictures = tools.photographs(16)[:count]
        return tools.observe(spec, pictures, list(labels)[:count]), pictures

    return make
