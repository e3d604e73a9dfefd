"""How far the first block's equations rebuild batches: residual, PSNR after matching, seconds, beside baselines.

python -m experiments.benchmarks.first_block --pictures DIR --model vit_tiny_patch16_224 --img-size 32 --patch-size 8
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from fedsim.models import ModelSpec
    from fedsim.observation import Observation


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=Path, required=True, help="a folder of class folders of .jpg files")
    parser.add_argument("--model", default="vit_small_patch32_224")
    parser.add_argument("--img-size", type=int, default=None, help="side of the pictures, the model's own by default")
    parser.add_argument("--patch-size", type=int, default=None, help="side of a patch, the model's own by default")
    parser.add_argument("--pool", default="token", choices=("token", "avg"))
    parser.add_argument("--depth", type=int, default=2, help="blocks; more cost the client time, the attack none")
    parser.add_argument("--batch", type=int, nargs="+", default=[2])
    parser.add_argument("--dtype", nargs="+", default=["float64"], help="of the client's gradient")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--starts", type=int, default=40)
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    print(
        "model pool B dtype seed | status found forward_residual tolerance attention_error | "
        "PSNR_min mean_picture random_gradient | seconds",
        flush=True,
    )
    for batch in arguments.batch:
        for dtype in arguments.dtype:
            for seed in arguments.seeds:
                _measure(arguments, batch, dtype, seed)


def _measure(arguments: argparse.Namespace, batch: int, dtype: str, seed: int) -> None:
    import torch

    from attacks.analytic.first_block import FirstBlock
    from fedsim.models import ModelSpec

    kwargs = {"depth": arguments.depth}
    if arguments.pool == "avg":
        kwargs |= {"global_pool": "avg", "class_token": False}
    spec = ModelSpec(
        arguments.model,
        num_classes=100,
        img_size=arguments.img_size,
        patch_size=arguments.patch_size,
        dtype=dtype,
        kwargs=kwargs,
    )
    observation, pictures = observe(spec, arguments.pictures, batch, seed)
    device = torch.device("cpu")
    start = time.perf_counter()
    result = FirstBlock(arguments.starts)(observation, torch.Generator().manual_seed(seed), device)
    seconds = time.perf_counter() - start
    blind = FirstBlock(starts=1)(_noise(observation, seed), torch.Generator().manual_seed(seed), device)
    assert result.images is not None
    assert blind.images is not None
    values = result.certificate.values
    mean = pictures.mean(dim=0, keepdim=True).expand_as(pictures)
    scores = [float(_psnr(images, pictures).min()) for images in (result.images, mean, blind.images)]
    print(
        f"{arguments.model} {arguments.pool} {batch} {dtype} {seed} | {result.certificate.status} "
        f"{values['tokens_found']:.3f} {values['forward_residual']:.1e} {values['tolerance']:.1e} "
        f"{values['attention_error']:.1e} | " + " ".join(f"{score:.1f}" for score in scores) + f" | {seconds:.1f}",
        flush=True,
    )


def observe(spec: "ModelSpec", folder: Path, batch: int, seed: int) -> "tuple[Observation, Tensor]":
    """A shared gradient of pictures that `seed` draws."""
    import numpy as np
    import torch
    from PIL import Image

    import fedsim
    from fedsim.models import input_size

    model = spec.build(seed).train()
    side = input_size(model)
    files = sorted(folder.rglob("*.jpg"))
    chosen = np.random.default_rng(seed).choice(len(files), batch, replace=False)
    arrays = [np.asarray(Image.open(files[i]).convert("RGB").resize((side, side))) for i in chosen]
    images = torch.from_numpy(np.stack(arrays)).double().div(255.0).permute(0, 3, 1, 2)
    return fedsim.observe(model, images, torch.arange(batch), seed=seed), images


def _noise(observation: "Observation", seed: int) -> "Observation":
    """A gradient that knows nothing."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(t.shape, generator=rng, dtype=t.dtype) for name, t in observation.update.tensors.items()
    }
    return replace(observation, update=replace(observation.update, tensors=tensors))


def _psnr(found: "Tensor", truth: "Tensor") -> "Tensor":
    """Of each picture after matching, capped at 300 dB."""
    from scipy.optimize import linear_sum_assignment

    error = (found.double()[:, None] - truth[None]).square().mean(dim=(2, 3, 4))
    rows, columns = linear_sum_assignment(error.numpy())
    return -10.0 * error[rows, columns].clamp(min=1e-30).log10()


if __name__ == "__main__":
    main()
