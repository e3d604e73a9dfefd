"""What a closed form and its certificate cost beside the client's own step, as ratios within one run.

python -m experiments.benchmarks.closed_form model=vit_small simulation.threads=2
python -m experiments.benchmarks.closed_form attack=[labels_certified] audit.batch_size=8 data=imagefolder data.path=DIR
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

    from attacks.building import build_attack
    from attacks.toward_mean import drawn_to_mean
    from clients.app import ClientRuntime
    from experiments.engine.setup import prepare
    from experiments.python.load_config import load_config
    from fedsim.determinism import torch_generator
    from fedsim.errors import ConfigError, NotApplicable
    from fedsim.simulation.ray_cluster import quiet_environment

    quiet_environment()
    try:
        config = load_config("audit", "simulation=inline", *overrides)
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from error
    threads = int(config["simulation"]["threads"])
    torch.set_num_threads(threads)
    setup = prepare(config)
    runtime = ClientRuntime(config, setup.data)
    state = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}
    images = setup.data.train.subset(range(config["audit"]["batch_size"]))
    images.images(range(len(images)))
    (name, settings) = next(iter(config["attack"].items()))
    attack, device = build_attack(name, settings), torch.device("cpu")
    client, bare, certificate, weighed = [], [], [], []
    for repeat in range(REPEATS + 1):
        runtime.load(state)
        step, result = _timed(partial(runtime.train, images, 0, 0))
        observation = setup.factory().make(runtime.share(result, state, len(images), 0, 0), state)
        try:
            attack.check(observation)
            run, claimed = _timed(partial(attack.run, observation, torch_generator(0), device))
        except NotApplicable as refusal:
            raise SystemExit(f"error: attack.{name} does not apply: {refusal}") from refusal
        confirm, found = _timed(partial(attack.confirm, observation, claimed))
        attack.certify = False
        weigh, _ = _timed(partial(drawn_to_mean, observation, attack.confirm(observation, claimed)))
        attack.certify = True
        if repeat:  # the first is a warm-up
            client.append(step)
            bare.append(run)
            certificate.append(confirm)
            weighed.append(weigh)
    print(f"{config['model']['name']}, batch {len(images)}, {threads} threads, {REPEATS} rounds, medians")
    print(f"{found.certificate.status}: {found.certificate.reason}")
    print(f"client's step                    {statistics.median(client):8.4f} s")
    print(f"{name:<31}  {statistics.median(bare):8.4f} s")
    print(f"certificate                      {statistics.median(certificate):8.4f} s")
    _say(f"{name} / client's step", bare, client)
    _say("certificate / client's step", certificate, client)
    _say(f"certificate / {name}", certificate, bare)
    if attack.shrinks_to_mean:
        _say("no certificate / client's step", weighed, client)  # such a result is held against the update


def _say(what: str, these: list[float], those: list[float]) -> None:
    ratios = [one / other for one, other in zip(these, those, strict=True)]
    print(f"{what:<31}  {statistics.median(ratios):8.3f}  ({min(ratios):.3f} … {max(ratios):.3f})")


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main()
