"""Whether a result stands: it goes once more through the client's own computation, and its error is bounded."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attacks.result import Certificate, PsnrBound, Reconstruction, psnr_of, uncertified
from fedsim.errors import NotApplicable
from fedsim.observation import Observation

MIN_PSNR = 60.0
"""dB: what rounding to 8 bits leaves is 58.9."""

MAX_PSNR = 120.0
"""dB: no more is promised, since images become a model's input in float32."""

MAX_MISMATCH = 1e-3
"""Relative, in the tensor that is most off. A true image leaves 1e-7 to 1e-5 of a float32 gradient."""

FLOOR = 1e-3
"""A tensor whose gradient is smaller than this share of all counts as that: some are rounding and nothing else."""

BoundOf = Callable[[Observation, Reconstruction, Observation], PsnrBound | None]


def confirmed(observation: Observation, result: Reconstruction, bound: BoundOf) -> Reconstruction:
    """The result with a certificate, or the reason why there is none.

    Certified is: the only image near this one that gives what was shared; twins far away are possible. Labels alone
    rest on the test of the head's own gradient, and on nothing having been drawn or summed.
    """
    if not observation.repeatable:
        return uncertified(result, _unrepeatable(observation))
    if observation.protocol.rounding:
        precision = observation.protocol.precision
        return uncertified(result, f"computed in {precision}: what differs by its rounding gives the same update")
    if result.images is None:
        return result
    if not observation.keeps("equations"):  # images near each other can share one update to the bit
        return uncertified(
            result, "a defense changes tensors apart, or does not say how: other images may give the same"
        )
    try:
        again, labels, off = _again(observation, result)
    except NotApplicable as refusal:
        return uncertified(result, str(refusal))
    if off > MAX_MISMATCH:
        reason = f"computed once more, its update is off by {off:.1g} of the shared one"
        return uncertified(result, reason, replayed=off)
    try:
        found = bound(observation, replace(result, labels=labels), again)
    except NotApplicable as refusal:  # other images may solve the equations too: it still does
        return uncertified(replace(result, solves_equations=True), str(refusal), replayed=off)
    if found is None or not math.isfinite(found.psnr):
        return uncertified(result, "its conditioning is unknown: how far the image could be off", replayed=off)
    psnr = min(found.psnr, left_over(observation, result.images, off), MAX_PSNR)
    if psnr < MIN_PSNR:
        reason = f"{psnr:.0f} dB at least by {found.how}: not exact pixels"
        return uncertified(result, reason, replayed=off, bounded_psnr=psnr)
    claim = result.certificate
    reason = f"computed once more, it gives the shared update up to {off:.0e}; {psnr:.0f} dB at least by {found.how}"
    values = {**claim.values, "replayed": off, "promised_psnr": psnr}
    return replace(result, certificate=Certificate("certified", f"{claim.reason}; {reason}", values))


def labels_confirmed(observation: Observation, result: Reconstruction) -> Reconstruction:
    """Labels alone, by a rule of one's own, with a certificate where the head's equations allow no others."""
    from attacks.certificate.assignments import certified_labels  # as in `_again`

    if result.certificate.status != "certified":
        return result
    known = certified_labels(observation)
    if known is None or result.labels is None:
        return uncertified(result, "nothing confirms labels of a rule of one's own where the head allows several")
    if known.sort().values.tolist() != result.labels.cpu().sort().values.tolist():
        return uncertified(result, "the head's equations allow other labels alone")
    return result


def left_over(observation: Observation, images: Tensor, off: float) -> float:
    """dB that what is left of the update leaves of the worst image: nothing where nothing is.

    Equations that two tensors enter hold for a multiple of the image where one of them was scaled; the update that the
    result gives tells by how much, in these tensors or in others. `off` may be of either, and counts for both.
    """
    size = float(observation.normalised(images).flatten(1).square().mean(dim=1).max().sqrt()) * max(observation.std)
    return psnr_of((2.0 * off * size) ** 2)


def mismatch(observation: Observation, again: Observation) -> float:
    """‖f(x̂) - f*‖ over ‖f*‖, of all tensors together or in the one that is most off; infinite where one is missing.

    A change of weights carries their rounding: it is allowed for in each tensor, and not in all together.
    """
    shared, found = observation.gradient, again.gradient
    if not shared or shared.keys() - found.keys():
        return math.inf
    whole = math.sqrt(math.fsum(float(tensor.square().sum()) for tensor in shared.values() if tensor.isfinite().all()))
    rounded = _rounding(observation)
    each = {name: _off(shared[name], found[name]) for name in shared}
    together = math.sqrt(math.fsum(off**2 for off in each.values())) / max(whole, 1e-300)
    return max(
        together,
        *(
            max(0.0, off - rounded.get(name, 0.0)) / max(float(shared[name].nan_to_num().norm()), FLOOR * whole, 1e-300)
            for name, off in each.items()
        ),
    )


def _off(shared: Tensor, found: Tensor) -> float:
    off = float((found - shared).norm())
    if not math.isfinite(off):  # half precision overflows, and does so again; NaN is NaN alone
        return 0.0 if torch.allclose(found, shared, rtol=0.0, atol=0.0, equal_nan=True) else math.inf
    return off


def _rounding(observation: Observation) -> dict[str, float]:
    """What the rounding of the weights leaves in each tensor of a change, as a norm; two of them are compared."""
    update, protocol = observation.update, observation.protocol
    if update.kind == "gradient":
        return {}
    scale, state = protocol.gradient_scale(), observation.global_state
    eps = {name: float(torch.finfo(tensor.dtype).eps) for name, tensor in update.tensors.items()}
    return {
        name: 2.0 * eps[name] * math.sqrt(protocol.steps) * float(state[name].double().norm()) / scale
        for name in update.tensors
    }


def _again(observation: Observation, result: Reconstruction) -> tuple[Observation, Tensor, float]:
    """The update that the result gives, with the labels that fit best.

    Raises:
        NotApplicable: no labels are known, or the computation cannot be done once more.
    """
    from attacks.certificate.assignments import assignments  # its label rules are attacks, which import this module

    assert result.images is not None
    images = result.images.detach()
    best: tuple[Observation, Tensor, float] | None = None
    for labels in assignments(observation, result):
        update = observation.replay(images, labels)
        if update is None:
            what = "adaptive steps are not repeated" if _adaptive(observation) else "an order or a draw is unknown"
            raise NotApplicable(f"the client's computation cannot be done once more: {what}")
        again = replace(observation, update=update)
        off = mismatch(observation, again)
        if best is None or off < best[2]:
            best = again, labels, off
        if off <= MAX_MISMATCH:
            break
    if best is None:
        raise NotApplicable("no labels are known to compute the update once more with")
    return best


def _adaptive(observation: Observation) -> bool:
    return observation.update.kind != "gradient" and observation.protocol.optimizer != "sgd"


def _unrepeatable(observation: Observation) -> str:
    if observation.replayer is None:
        return "how the client computes is not known here, so that nothing can be computed once more"
    if observation.summed != 1:
        return f"a sum over {observation.summed} clients cannot be computed once more"
    if observation.finetune.keeps:
        return "the client has parameters of its own, which nobody else knows: the update cannot be computed once more"
    if observation.protocol.steps > 1:
        steps = observation.protocol.steps
        return f"each of {steps} local steps may have seen other images behind a defense that draws or does not say"
    return "a defense draws, remembers or does not say how it acts: the update cannot be computed once more"
