"""What the products of `gauss_newton` cost in training steps, and what it finds beside a first-order search.

python -m experiments.benchmarks.second_order                        the products
python -m experiments.benchmarks.second_order --beside everything    both searches for equal seconds on digits
python -m experiments.benchmarks.second_order --beside everything --model vit_tiny_8 --pictures DIR

A training step is forward and backward of the same model and image in float64. The floor is counted: FLOPs of matrix
products, in those of a training step.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.studies.harness.options import parsed

if TYPE_CHECKING:
    import torch

    from fedsim.observation import Observation


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", nargs="+", default=["built", "vit_tiny_8"], choices=["built", "vit_tiny_8"])
    options.add_argument("--repeats", type=int, default=5, help="rounds of all products in turn; medians are shown")
    options.add_argument("--threads", type=int, default=1, help="torch threads")
    options.add_argument("--beside", nargs="+", help="what is shared, as the study second_order names it")
    options.add_argument("--model", default="built", choices=["built", "vit_tiny_8"], help="of the searches")
    options.add_argument("--images", type=int, default=1, help="of the searches")
    options.add_argument("--pictures", type=Path, help="a folder of class folders, for vit_tiny_8's searches")
    options.add_argument("--device", default="cpu", help="cpu or cuda")
    found = parsed(options)
    if found.beside and found.model == "vit_tiny_8" and found.pictures is None:
        options.error("--pictures must be given: vit_tiny_8 attacks a folder's images")
    return found


def main() -> None:
    options = _options()

    import torch

    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    if options.beside:
        searches(options.model, options.beside, options.images, options.pictures, device)
        return
    for model in options.models:
        products(model, options.repeats, device)


def products(model: str, repeats: int, device: "torch.device") -> None:
    """One table: each product in training steps, by time and by FLOPs."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    seen, wait = drawn(model), torch.cuda.synchronize if device.type == "cuda" else None
    with sdpa_kernel(SDPBackend.MATH):
        calls, floors = _calls(seen, device)
        rounds = [{name: _seconds(call, wait) for name, call in calls.items()} for _ in range(repeats + 1)][1:]
    step = statistics.median(one["training step"] for one in rounds)
    print(f"\n{model}, {device}, medians of {repeats} rounds, training step {1e3 * step:.2f} ms\n")
    print("| product | ms | training steps | floor by FLOPs |\n| --- | --- | --- | --- |")
    for name in calls:
        ms = 1e3 * statistics.median(one[name] for one in rounds)
        ratio = statistics.median(one[name] / one["training step"] for one in rounds)
        print(f"| {name} | {ms:.1f} | {ratio:.1f} | {floors[name]:.1f} |")


def _calls(seen: "Observation", device: "torch.device") -> tuple[dict[str, Callable[[], object]], dict[str, float]]:
    """What is timed, by name, and the floor of each in training steps."""
    import torch
    import torch.nn.functional as F

    from attacks.forward_mode import jacobian_product
    from attacks.optimization import Pixels
    from attacks.optimization.cuda_graph import replayed
    from attacks.optimization.problem import make_problem, shared_update
    from attacks.optimization.second_order.posterior.mean import LEAPS
    from attacks.optimization.second_order.residual.residual import make_residuals
    from attacks.optimization.second_order.stages import MOST_WHOLE, PARTS, most_together
    from attacks.optimization.second_order.steps.products import KeptProducts
    from attacks.optimization.second_order.steps.sketch import Sketch, gram, sketch
    from attacks.positions import of_images

    labels, prior = torch.tensor([0], device=device), seen.image_prior
    assert prior is not None
    problem = make_problem(seen, of_images(seen, shared_update(seen, "gradient", device)), labels, Pixels(), {}, device)
    residual, coarse = (
        make_residuals(problem, "gradient", prior, labels, device, dtype=dtype)[-1]
        for dtype in (torch.float64, torch.float32)
    )
    x = seen.normalised(prior.centre((1, *seen.image_shape))).flatten().double().to(device)
    vit, v = seen.build_model().double().to(device), torch.randn_like(x)

    def step() -> None:
        vit.zero_grad()
        F.cross_entropy(vit(x.view(1, *seen.image_shape)), labels).backward()

    def back() -> torch.Tensor:
        at = x.clone().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(residual(at).square().sum(), at)[0]

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return jacobian_product(residual, x, v)

    kept, rough = KeptProducts(residual.pieces(), x, len(x)), KeptProducts(coarse.pieces(), x.float(), len(x))
    calls: dict[str, Callable[[], object]] = {
        "training step": step, "gradient of ‖r‖²": back, "Jacobian-vector, forward mode": forward,
        "J kept": lambda: KeptProducts(residual.pieces(), x, len(x)),
        "Jacobian-vector": lambda: kept.forward(v), "vector-Jacobian": lambda: kept.transposed(kept.value),
        "Gauss-Newton": lambda: kept.normal(v), "Gauss-Newton, float32": lambda: rough.normal(v.float()),
    }  # fmt: skip
    floors = {name: _flops(call) for name, call in calls.items()}
    if device.type == "cuda":
        once = replayed(lambda v: (kept.normal(*v),), [v])
        calls |= {"capture as a CUDA graph": lambda: replayed(lambda v: (kept.normal(*v),), [v])}
        calls |= {"Gauss-Newton, one CUDA graph": lambda: once([v])}
        floors |= dict.fromkeys(("capture as a CUDA graph", "Gauss-Newton, one CUDA graph"), floors["Gauss-Newton"])
    if len(x) <= MOST_WHOLE:
        columns = residual.jacobian(x).T
        calls |= {"J whole": lambda: residual.jacobian(x), "J whole, float32": lambda: coarse.jacobian(x.float())}
        calls |= {"JᵀJ": lambda: gram(columns)}
        calls |= {"one draw (8 leaps)": lambda: [back() for _ in range(LEAPS)]}
        floors |= {
            **dict.fromkeys(("J whole", "J whole, float32"), len(x) * floors["Jacobian-vector, forward mode"]),
            "JᵀJ": float(columns.numel() * (len(x) + 1)),
        }
        floors |= {"one draw (8 leaps)": LEAPS * floors["gradient of ‖r‖²"]}
    else:
        first = len(x) // PARTS[0]
        name = f"sketch of {first} coordinates"
        calls[name] = lambda: sketch(coarse.pieces(), x.float(), first, first, most_together(device))
        floors[name] = first * floors["Jacobian-vector, forward mode"]
        rows = torch.randn(len(x), 2 * len(x), dtype=torch.float64, device=device)
        normal = gram(rows) / len(x)
        calls |= {
            "preconditioner at one damping, inverse": lambda: Sketch(normal, 1.0).by_inverse(1e-3),
            "at every damping, spectrum": lambda: Sketch(normal, 1.0).by_spectrum(1e-3),
        }
        floors |= {"preconditioner at one damping, inverse": float(len(x)) ** 3}
        floors |= {"at every damping, spectrum": float(len(x)) ** 3 * 9.0}
    return calls, {name: floor / floors["training step"] for name, floor in floors.items()}


def _flops(call: Callable[[], object]) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call()
    return float(counter.get_total_flops())


def _seconds(call: Callable[[], object], wait: Callable[[], None] | None) -> float:
    """The mean of as many calls as a fifth of a second has, one at least.

    Args:
        wait: for what a call has started on a GPU.
    """
    start, count = time.perf_counter(), 0
    while not count or time.perf_counter() - start < 0.2:
        call()
        if wait is not None:
            wait()
        count += 1
    return (time.perf_counter() - start) / count


def drawn(model: str) -> "Observation":
    """What one client shares of an image that is a draw of a prior: no folder is needed to time it."""
    import torch

    from experiments.studies.second_order import victims
    from fedsim.bounds.gaussian_prior import GaussianPrior
    from fedsim.bounds.public_prior import PublicPrior

    side = victims.SIDE if model in victims.FOLDER_MODELS else victims.SHAPE[-1]
    images = GaussianPrior().draw((32, 3, side, side), torch.Generator().manual_seed(0)).clamp(0.0, 1.0).double()
    return victims.observed(model, [], images[:1], torch.tensor([0]), 0, PublicPrior.of(images[1:]))


def searches(model: str, shares: Sequence[str], images: int, pictures: Path | None, device: "torch.device") -> None:
    """dB of `gauss_newton`, of `april_optimization` for as many seconds, and of the mean of public images."""
    import fedsim
    from attacks.result import psnr_of
    from experiments.studies.second_order import victims
    from experiments.studies.second_order.study import SHARES

    source = victims.Victims.of(model, pictures)
    print("| shared | image | seconds | `gauss_newton` | `april_optimization` | its steps | a guess |")
    print("|" + " --- |" * 7)
    for share in shares:
        for index in range(images):
            truth, labels = source.images([index])
            seen = victims.observed(model, SHARES[share].defenses(model), truth, labels, index, source.public())
            second = fedsim.attack("gauss_newton", seen, device=device, frames=0, save_every=0)
            short, long = (
                fedsim.attack("april_optimization", seen, device=device, steps=steps, frames=0, save_every=0).seconds
                for steps in (10, 40)
            )
            steps = max(1, round(second.seconds / max((long - short) / 30, 1e-4)))
            first = fedsim.attack("april_optimization", seen, device=device, steps=steps, frames=0, save_every=0)
            found = [one.images for one in (second, first)]
            decibels = [
                "refused" if x is None else f"{psnr_of(float((x.double().cpu() - truth).square().mean())):.1f}"
                for x in found
            ]
            guess = psnr_of(float((source.public().mean - truth).square().mean()))
            seconds = f"{second.seconds:.1f}, {first.seconds:.1f}"
            print(
                f"| {share} | {index} | {seconds} | {decibels[0]} | {decibels[1]} | {steps} | {guess:.1f} |", flush=True
            )


if __name__ == "__main__":
    main()
