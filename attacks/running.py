"""Running one attack on one observation or several, on whatever worker: a refusal and a fault are results too."""

import copy
import gc
import math
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_class
from torch import Tensor

from attacks.analytic.linear.certificate import MAX_RESIDUAL
from attacks.base import Attack, NotApplicable, Reconstruction, finished
from attacks.building import WROTE, build_attack, handed_to, versions, written
from attacks.session import FolderSession, fingerprint
from attacks.toward_mean import drawn_to_mean
from fedsim.determinism import torch_generator
from fedsim.errors import ConfigError
from fedsim.float32 import full_float32
from fedsim.history import History
from fedsim.observation import Observation
from fedsim.result import AttackResult, Status
from fedsim.settings.knowledge import without_knowledge

logger = getLogger(__name__)

SHRINKS = 10
"""How often an attack that runs out of memory is tried again with less: a thousandth of what it first took."""

OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "cannot allocate memory",
    "status_alloc_failed",
)
"""What torch's allocators, cuBLAS and cuDNN say in a plain RuntimeError."""

BROKEN = "CUDA does nothing more in its process"
"""Said of a failure after which that process computes nothing on a GPU."""

Make = Callable[[Sequence[Observation]], Attack]
"""Builds an attack for the observations that it is to serve."""

GIVEN = "its labels were given, and not read off the update"
"""What is said of a result for which labels were stated beforehand."""


def attack_device(num_gpus: float) -> torch.device:
    return torch.device("cuda" if num_gpus > 0 else "cpu")


def run_attack(
    observation: Observation,
    name: str,
    settings: dict[str, Any],
    seed: int,
    device: torch.device,
    scratch: Path | None = None,
    earlier: Sequence[Observation] = (),
) -> AttackResult:
    """Run one attack; a refusal is a result, and so is a fault in its code. Nothing is scored.

    One that runs out of memory is tried again with less, as long as it can (`Attack.shrink`).

    Args:
        scratch: where the attack may keep what another try goes on from; whoever takes the result removes it
            (`attacks.session.discard`), once the result is safe.
        earlier: observations of the same client's same images; an attack that reads several rounds gets them too. One
            that refuses them, or fails of them, is run on this round alone, and says so as its reason.
    """
    make = partial(_with_session, name, settings, seed, device, scratch)
    if not earlier or not reads_history(settings):
        return _one(observation, name, make, seed, device)
    whole = _on_rounds(observation, name, make, seed, device, earlier)
    if whole.status not in ("refused", "failed") or breaks_process(whole):
        return whole
    alone = _one(observation, name, make, seed, device)
    if alone.status == "refused" or (alone.status == whole.status and not breaks_process(alone)):
        return whole
    return replace(_also(alone, f"of this round alone: {whole.reason}"), fault=alone.fault or whole.fault)


def _also(result: AttackResult, reason: str) -> AttackResult:
    return replace(result, reason="; ".join(filter(None, [result.reason, reason])))


def _on_rounds(
    observation: Observation,
    name: str,
    make: Callable[..., Attack],
    seed: int,
    device: torch.device,
    earlier: Sequence[Observation],
) -> AttackResult:
    """On all rounds, as a result of the last."""
    try:
        history = History((*earlier, observation))
    except ConfigError as error:
        return ended(observation, name, None, "refused", str(error))
    result = _one(history, name, partial(make, names=[observation.name]), seed, device)
    return replace(result, observation=observation.name)


def reads_history(settings: dict[str, Any]) -> bool:
    """Whether the attack makes anything of several rounds of one client."""
    try:
        kind = get_class(settings["_target_"])
    except (ImportError, KeyError, ValueError, AttributeError):
        return False  # it cannot be built: that becomes its result
    return issubclass(kind, Attack) and kind.run_history is not Attack.run_history


def run_on_history(history: History, name: str, attack: Attack, seed: int, device: torch.device) -> AttackResult:
    """`run_attack` on several rounds of one client, with an attack in hand."""
    return _one(history, name, lambda _: attack, seed, device)


@full_float32()
def _one(observation: Observation | History, name: str, make: Make, seed: int, device: torch.device) -> AttackResult:
    start = time.perf_counter()
    rounds = observation.observations if isinstance(observation, History) else (observation,)
    attack = None
    try:
        attack = make(rounds)
        own = handed_to(attack, rounds)
        before = [versions(one) for one in own]
        handed = History(own) if isinstance(observation, History) else own[0]
        result = _within_memory(attack, handed, name, seed, device)
        if written(attack, own, before):
            raise RuntimeError(WROTE)
    except NotApplicable as refusal:
        return ended(observation, name, attack, "refused", str(refusal), time.perf_counter() - start)
    except (Exception, SystemExit) as error:  # attacks are plug-ins: their faults belong into the report
        if _stopped(error):
            raise
        return _failed(observation, name, attack, error, device, time.perf_counter() - start)
    finally:
        if attack is not None:
            attack.session.end()
    return result


def _stopped(error: BaseException) -> bool:
    """Whether the process is being ended, and not by the attack: Ray exits with the signal's number."""
    return isinstance(error, SystemExit) and error.code == signal.SIGTERM


def _failed(
    observation: Observation | History,
    name: str,
    attack: Attack | None,
    error: Exception | SystemExit,
    device: torch.device,
    seconds: float,
) -> AttackResult:
    """The result of a fault that is being handled."""
    fault = traceback.format_exc()
    logger.error("attack %s failed:\n%s", name, fault)
    result = ended(observation, name, attack, "failed", f"{type(error).__name__}: {error}", seconds, fault)
    return _also(result, BROKEN) if _broken(device) else result


def _broken(device: torch.device) -> bool:
    """Whether a kernel has failed, as at an index out of range: CUDA then refuses all that its process asks."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError:
            return True
    return False


def breaks_process(result: AttackResult) -> bool:
    """Whether its process can attack nothing more."""
    return result.status == "failed" and BROKEN in result.reason


def ended(
    observation: Observation | History,
    name: str,
    attack: Attack | None,
    status: Status,
    reason: str = "",
    seconds: float = 0.0,
    fault: str = "",
) -> AttackResult:
    """The result of an attack that gave nothing back.

    Args:
        attack: None where it could not be built.
    """
    last = observation.observations[-1] if isinstance(observation, History) else observation
    kind = {} if attack is None else {"target": attack.recovers, "baseline": attack.baseline}
    result = AttackResult.of(last, name, status, reason, seconds=seconds, fault=fault, **kind)
    return replace(result, observation=observation.name)


def _done(observation: Observation | History, name: str, attack: Attack, rebuilt: Reconstruction) -> AttackResult:
    if attack.shrinks_to_mean and isinstance(observation, Observation):
        start = time.perf_counter()
        rebuilt = drawn_to_mean(observation, rebuilt)
        rebuilt = replace(rebuilt, seconds=rebuilt.seconds + time.perf_counter() - start)
    result = ended(observation, name, attack, "done", rebuilt.note, rebuilt.seconds)
    made = 0 if rebuilt.images is None else len(rebuilt.images)
    if made > result.batch_size and not attack.baseline:
        first = f"{made:,} images for an update of {result.batch_size:,}: the first {result.batch_size:,} count"
        result = _also(result, f"{first}, as no server knows which of them suit the originals")
    return replace(
        _also(result, GIVEN * rebuilt.labels_given),
        certificate=rebuilt.certificate,
        images=rebuilt.images,
        own_images=_own(observation, attack, rebuilt),
        labels=None if rebuilt.labels_given else rebuilt.labels,
        trace=rebuilt.trace,
        frames=rebuilt.frames,
    )


def _own(observation: Observation | History, attack: Attack, rebuilt: Reconstruction) -> Tensor | None:
    """The client's own images by what the model saw, for attacks that recover that.

    One image for a batch is a mixture of it, unless it satisfies the attack's equations by itself.
    """
    first = observation.observations[0] if isinstance(observation, History) else observation
    if first.image_prior is None or rebuilt.images is None or rebuilt.of_own or attack.baseline:
        return None
    alone = rebuilt.solves_equations or rebuilt.certificate.values.get("residual", math.inf) <= MAX_RESIDUAL
    mixed = len(rebuilt.images) == 1 and not alone
    return first.image_prior.own_images(rebuilt.images, first.num_images if mixed else 1)


def _within_memory(
    attack: Attack, observation: Observation | History, name: str, seed: int, device: torch.device
) -> AttackResult:
    """The result, with the setting that made the attack small enough as its reason, if it had to be changed."""

    def attempt() -> AttackResult:
        return _done(observation, name, attack, attack(observation, _generator(observation, name, seed), device))

    smaller = ""
    for _ in range(SHRINKS):
        try:
            return _also(attempt(), smaller and f"out of memory until {smaller}")
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error) or not (shrunk := attack.take_less(device)):
                raise
            smaller = shrunk
            logger.warning("attack %s ran out of memory (%s), now %s", name, error, smaller)
        # Here and not above: while the error is handled, its traceback holds the tensors of the attempt.
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return _also(attempt(), f"out of memory until {smaller}")


def out_of_memory(error: BaseException) -> bool:
    """Whether less memory could have avoided it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in OUT_OF_MEMORY)


def run_attack_on_many(
    observations: Sequence[Observation],
    name: str,
    settings: dict[str, Any],
    seed: int,
    device: torch.device,
    scratch: Path | None = None,
    given: Attack | None = None,
) -> list[AttackResult]:
    """`run_attack` on each, at once where the attack overrides `run_many`; each took its share of the seconds.

    A fault of the group is no fault of each: they are then attacked one by one.

    Args:
        given: an object in place of what the settings build; each time a copy of it is run.
    """
    make = partial(_with_session, name, settings, seed, device, scratch, given=given)
    return _many(observations, name, make, seed, device)


def run_built(
    observations: Sequence[Observation], name: str, attack: Attack, seed: int, device: torch.device
) -> list[AttackResult]:
    """`run_attack_on_many` with an attack in hand."""
    return _many(observations, name, lambda _: attack, seed, device)


def _many(
    observations: Sequence[Observation], name: str, make: Make, seed: int, device: torch.device
) -> list[AttackResult]:
    results = None
    if len(observations) > 1:
        try:
            results = _together(observations, name, make, seed, device)
        except (Exception, SystemExit) as error:  # attacks are plug-ins; a fault of one comes again below
            if _stopped(error):
                raise
            logger.warning(
                "attack %s on %d updates at once failed, now one by one:\n%s",
                name,
                len(observations),
                traceback.format_exc(),
            )
    if results is None:
        results = [_one(one, name, make, seed, device) for one in observations]
    return results


@full_float32()
def _together(
    observations: Sequence[Observation], name: str, make: Make, seed: int, device: torch.device
) -> list[AttackResult] | None:
    """None where the attack serves its victims one by one anyway."""
    attack = make(observations)
    try:
        return _of_group(attack, observations, name, seed, device)
    finally:
        attack.session.end()


def _of_group(
    attack: Attack, observations: Sequence[Observation], name: str, seed: int, device: torch.device
) -> list[AttackResult] | None:
    if type(attack).run_many is Attack.run_many:
        return None
    start = time.perf_counter()
    observations = handed_to(attack, observations)
    before = [versions(one) for one in observations]
    rngs = [_generator(one, name, seed) for one in observations]
    results = attack.run_many(observations, rngs, device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = (time.perf_counter() - start) / len(observations)
    made = []
    for index, (observation, result, rng) in enumerate(zip(observations, results, rngs, strict=True)):
        if isinstance(result, NotApplicable):
            made.append(ended(observation, name, attack, "refused", str(result), seconds))
            continue
        try:
            begun = time.perf_counter()
            result = attack.finish(observation, result, rng, device, f"then-{index}")
            result = finished(result, seconds + time.perf_counter() - begun)
            made.append(_done(observation, name, attack, result))
        except NotApplicable as refusal:
            made.append(ended(observation, name, attack, "refused", str(refusal), seconds))
        except Exception as error:
            if out_of_memory(error):
                raise  # one by one each is tried with less
            made.append(_failed(observation, name, attack, error, device, seconds))
    if written(attack, observations, before):
        return [ended(one, name, attack, "failed", f"RuntimeError: {WROTE}", seconds) for one in observations]
    return made


def _with_session(
    name: str,
    settings: dict[str, Any],
    seed: int,
    device: torch.device,
    scratch: Path | None,
    observations: Sequence[Observation],
    names: Sequence[str] = (),
    given: Attack | None = None,
) -> Attack:
    """`names`: of the result, where it is not each observation's; `given`: as for `run_attack_on_many`."""
    attack = build_attack(name, settings) if given is None else copy.deepcopy(given)
    if scratch is not None:
        names = names or [one.name for one in observations]
        same = partial(fingerprint, observations, without_knowledge(settings), seed, device)
        session = FolderSession(scratch, names, name, same)
        session.begin()
        attack.session = session
    return attack


def _generator(observation: Observation | History, name: str, seed: int) -> torch.Generator:
    if isinstance(observation, History):
        return _generator(observation.observations[0], name, seed)
    return torch_generator(seed, "attack", name, observation.server_round, observation.client)
