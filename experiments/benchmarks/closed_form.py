"""What a closed form and its certificate cost beside the client's own step, as ratios within one run.

python -m experiments.benchmarks.closed_form model=vit_small simulation.threads=2
python -m experiments.benchmarks.closed_form model=vit_tiny_32 attack=[labels_certified] audit.batch_size=8
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

REPEATS = 5


def main() -> None:
    """Time all in turn, so that a machine that slows down slows all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    overrides = parser.parse_known_args()[1]

    import torch

    from attacks.running import CERTIFY, run_attack
    from clients.app import ClientRuntime
    from experiments.engine.setup import prepare
    from experiments.python.load_config import load_config
    from fedsim.simulation.ray_cluster import quiet_environment

    quiet_environment()
    config = load_config("audit", "simulation=inline", *overrides)
    threads = int(config["simulation"]["threads"])
    torch.set_num_threads(threads)
    setup = prepare(config)
    runtime = ClientRuntime(config, setup.data)
    state = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}
    images = setup.data.train.subset(range(config["audit"]["batch_size"]))
    images.images(range(len(images)))
    runtime.load(state)
    (name, settings) = next(iter(config["attack"].items()))
    left_out = {**settings, CERTIFY: False}
    client, attack, bare = [], [], []
    for repeat in range(REPEATS + 1):
        seconds, result = _timed(partial(runtime.train, images, 0, 0))
        observation = setup.factory().make(runtime.share(result, state, len(images), 0, 0), state)
        bare_seconds, found = _timed(partial(run_attack, observation, name, left_out, 0, torch.device("cpu")))
        attack_seconds, found = _timed(partial(run_attack, observation, name, settings, 0, torch.device("cpu")))
        assert found.status == "done", found.reason
        if repeat:  # the first is a warm-up
            client.append(seconds)
            bare.append(bare_seconds)
            attack.append(attack_seconds)
    certificate = found.certificate
    print(f"{config['model']['name']}, batch {len(images)}, {threads} threads, {REPEATS} rounds, medians")
    print(f"{certificate.status}: {certificate.reason}")
    print(f"client's step                    {statistics.median(client):8.4f} s")
    print(f"{name + ', certify=false':<31}  {statistics.median(bare):8.4f} s")
    print(f"{name:<31}  {statistics.median(attack):8.4f} s")
    _say("attack / client's step", attack, client)
    added = [whole - part for whole, part in zip(attack, bare, strict=True)]
    _say("certificate / client's step", added, client)
    _say("certificate / attack without it", added, bare)


def _say(what: str, these: list[float], those: list[float]) -> None:
    ratios = [one / other for one, other in zip(these, those, strict=True)]
    print(f"{what:<31}  {statistics.median(ratios):8.3f}  ({min(ratios):.3f} … {max(ratios):.3f})")


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main()
