"""What a DP-SGD step costs: the ratio to a plain step, in pairs of neighbouring measurements.

python -m experiments.benchmarks.dp_sgd --batch-sizes 8 32 --chunks 1 8 --pairs 7

A step is the gradient of one batch as a client takes it (ViT-Ti/4 at 32 px, or as told) and the optimiser's step;
pictures are noise, whose values cost nothing. Within a pair the order alternates, so that a machine that slows down
meanwhile favours neither. One thread on a CPU is measured in seconds of that CPU, anything else by the clock.
"""

import argparse
import resource
import statistics


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--img-size", type=int, default=32)
    parser.add_argument("--patch-size", type=int, default=4)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--chunks", type=int, nargs="+", default=[8], help="pictures at once; 0: the whole batch")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def main() -> None:
    """Measure each batch size and chunk, and print a Markdown table."""
    options = _options()

    import torch

    from defenses import DPSGD, DefenseChain
    from experiments.benchmarks.steps import local_step, time_pairs
    from fedsim.models import ModelSpec

    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    spec = ModelSpec(options.model, 10, options.img_size, options.patch_size, kwargs={"depth": options.depth})
    print("| batch | chunk | plain step, ms | DP-SGD step, ms | ratio: median (lowest to highest) | peak MiB so far |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for size in options.batch_sizes:
        for chunk in options.chunks:
            plain = local_step(spec, DefenseChain(), size, device)
            private = local_step(spec, DefenseChain({"dp_sgd": DPSGD(chunk=chunk or None)}), size, device)
            times = time_pairs(plain, private, options.pairs, device)
            ratios = [second / first for first, second in zip(*times, strict=True)]
            first, second = (1e3 * statistics.median(seconds) for seconds in times)
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"| {size} | {chunk or size} | {first:.0f} | {second:.0f} | {spread} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
