"""Which classes were in the batch, from the gradient of the classifier."""

from collections import Counter
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.base import Attack, Certificate, Needs, Reconstruction
from attacks.label.certified import as_reconstruction, features_of
from attacks.label.head.gradient import head_is_exact, rounding, shared, sign_rounding, single_head, tells
from attacks.label.one_example.label import label_of_one, relative_sum
from attacks.label.public_images.counts import from_public_images, likely
from attacks.label.public_images.gradients import from_public_gradients
from attacks.label.rules import basic, counting
from attacks.label.rules.membership import rlg
from attacks.label.rules.reference import random_reference
from attacks.label.rules.signs import labels_of_signs, steps_are_signs
from attacks.result import uncertified
from fedsim.effects import AddsErrors
from fedsim.errors import ConfigError, NotApplicable, nearest, require
from fedsim.history import History
from fedsim.observation import Observation

FROM_WEIGHT = ("idlg", "gradinversion", "gradinversion_sum", "rlg")
FROM_REFERENCE = ("llg", "llg_bias", "zlg")
FROM_PUBLIC = ("class_moments", "nearest_public")
RULES = ("auto", *FROM_WEIGHT, *FROM_REFERENCE, "ilrg", "bias_sign", "bias_corrected", "bias_prior", *FROM_PUBLIC)
MOST_LABELS = 100_000
"""A client may claim any number of examples, and each label is written down."""
COUNTED_ALONE = 8
"""Largest batch of which `auto` looks for the counts that alone explain the gradient: beyond it that takes seconds."""


class RecoverLabels(Attack):
    """The multiset of labels, sorted, by one rule of `attacks.label.rules.basic`, `.counting` or `.membership`.

    Of changes by Adam `auto` and `bias_sign` read the signs (`labels_of_signs`), others are refused. Else `auto` takes
    `label_of_one` for one example; up to `COUNTED_ALONE` examples it looks for the only counts that explain the
    gradient; else, or where none do, `class_moments` with public images that the batch is like, then `bias_prior` with
    auxiliary pictures and `bias_corrected` without.
    Where the bias has no shared gradient, or one of zero, the weight is read: `label_by_weight` for one example, `llg`
    for several. Where that has none either, public images tell: `nearest_public`.
    Labels alone: no pictures. A clipped gradient's scale is unknown: that misleads the rules that count, and no other
    where labels are hard; smoothed ones it may hide from `bias_sign`.

    Args:
        rule: one of `RULES`.
        reference: `llg`, `llg_bias` and `zlg` learn what a label weighs, and what is there without any, from the
            model's answer to random pictures, with the mean softmax over auxiliary pictures where there are any.
            Without it LLG takes the gradient alone, and `zlg` is refused.
    """

    recovers = "labels"

    def __init__(self, rule: str = "auto", reference: bool = True) -> None:
        require("attack.labels.rule", rule, rule in RULES, f"one of {', '.join(RULES)}.{nearest(str(rule), RULES)}")
        if rule == "zlg" and not reference:
            raise ConfigError("attack.labels.reference", reference, "true: zlg knows no features without it")
        self.rule = rule
        self.reference = reference
        self.needs = Needs(
            auxiliary=rule in ("auto", "bias_prior", *FROM_PUBLIC) or (reference and rule in FROM_REFERENCE)
        )

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable without a head, where its gradient is withheld, and without auxiliary images.

        With labelled public images no head is needed.
        """
        protocol = observation.protocol
        total = observation.num_images
        if total > MOST_LABELS:
            raise NotApplicable(f"{total} labels: more than {MOST_LABELS} tell nobody anything")
        if steps_are_signs(observation) and self.rule in ("auto", "bias_sign"):
            return labels_of_signs(observation, total, self.rule == "auto")
        if self.rule in FROM_WEIGHT:
            return _from_weight(observation, self.rule, total)
        if protocol.label_smoothing >= 1.0:
            raise NotApplicable("label_smoothing=1 leaves nothing of the labels in the gradient")
        if self.rule in FROM_REFERENCE:
            return self._from_reference(observation, total, rng, device)
        if self.rule == "nearest_public":
            return from_public_gradients(observation, total, device)
        if self.rule == "auto" and not tells(observation, "bias"):
            if not tells(observation, "weight") and _has_labelled_images(observation):
                return from_public_gradients(observation, total, device)
            if total > 1:
                return RecoverLabels("llg", self.reference)._from_reference(observation, total, rng, device)
        if self.rule == "auto" and total == 1:
            return label_of_one(observation)
        bias_grad = shared(observation, "bias")
        if self.rule == "ilrg":
            return _ilrg(observation, bias_grad, total)
        if self.rule == "class_moments":
            return from_public_images(observation, bias_grad, total, rng, device)
        if self.rule == "auto":
            found = _proof(observation, total, rng) or likely(observation, bias_grad, total, rng, device)
            if found is not None:
                return found
        return _from_bias(observation, self.rule, bias_grad, total)

    def run_history(self, history: History, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """The labels of a round whose equations hold, else those that most rounds name, the earliest of equals.

        Rounds that tell none are left out, and beside others those that carry errors of earlier ones. Certified is
        what the first round alone certifies.

        Raises:
            NotApplicable: two rounds certify different labels, so that they are not of the same images.
        """
        rounds = history.each(lambda observation: self.run(observation, rng, device))
        told = [(seen, one) for seen, one in zip(history.observations, rounds, strict=True) if one is not None]
        each = [one for seen, one in told if seen.effect(AddsErrors) is None] or [one for _, one in told]
        named = [None if one.labels is None else tuple(one.labels.tolist()) for one in each]
        sure = {labels for one, labels in zip(each, named, strict=True) if one.certificate.certified}
        if len(sure) > 1:
            raise NotApplicable("rounds certify different labels: they are not of the same images")
        certified = next((index for index, one in enumerate(each) if one.certificate.certified), None)
        chosen = named.index(Counter(named).most_common(1)[0][0]) if certified is None else certified
        if each[chosen] is rounds[0]:
            return each[0]
        votes = named.count(named[chosen])
        return uncertified(each[chosen], f"named by {votes} of {len(each)} rounds, not certified by the first alone")

    def _from_reference(
        self, observation: Observation, total: int, rng: torch.Generator, device: torch.device
    ) -> Reconstruction:
        """LLG and zero-shot restoration; in the bias form every feature counts as 1."""
        part = "bias" if self.rule == "llg_bias" else "weight"
        gradient = shared(observation, part)
        scores = gradient if part == "bias" else gradient.sum(dim=1)
        if not self.reference:
            share = counting.impact_of_scores(scores, total, observation.protocol.label_smoothing)
            labels = counting.llg(scores, total, share)
            return _uncertified(labels, "a label's weight is estimated for a uniform softmax", {})
        auxiliary = observation.auxiliary_probs
        if part == "bias" and auxiliary is not None:
            probs, sums = auxiliary.double().cpu()[None], torch.ones(1, dtype=torch.float64)
        else:
            reference = random_reference(observation, rng, device)
            probs = reference.probs if auxiliary is None else auxiliary.double().cpu().expand_as(reference.probs)
            sums = torch.ones(len(probs)) if part == "bias" else reference.features.sum(dim=1)
        seen = "random pictures" if auxiliary is None else "auxiliary pictures"
        values = {"mean_sum": float(sums.mean()), "spread": float(sums.std(correction=0))}
        if self.rule == "zlg":
            smoothing, mean_sum = observation.protocol.label_smoothing, values["mean_sum"]
            try:
                counts = counting.zero_shot_counts(gradient, probs.mean(dim=0), mean_sum, total, smoothing)
            except ValueError as error:
                raise NotApplicable(str(error)) from error
            return _uncertified(
                basic.labels_of(counts, total),
                f"features' mean sum comes from random pictures, the softmax from {seen}",
                values,
            )
        share = counting.share_of_reference(probs, sums, total, observation.protocol.label_smoothing)
        labels = counting.llg(scores, total, share)
        if part == "weight" and auxiliary is not None:
            seen = "random pictures, the softmax from auxiliary ones"
        return _uncertified(labels, f"a label's weight and the rest come from {seen}", values)


def _from_weight(observation: Observation, rule: str, total: int) -> Reconstruction:
    weight_grad = shared(observation, "weight")
    if rule == "rlg":
        try:
            labels = rlg(weight_grad, total, rounding(observation))
        except ValueError as error:
            raise NotApplicable(f"{total} examples: {error}") from error
        reason = "classes without their counts: some may not have been there, and features that depend hide some"
        return _uncertified(labels, reason, {})
    if rule == "idlg":
        if total > 1:
            raise NotApplicable(f"iDLG names one label: the update was computed from {total} examples")
        return _uncertified(basic.idlg(weight_grad), "right where the features' sum is positive", {})
    if total > len(weight_grad):
        raise NotApplicable(f"{total} examples of {len(weight_grad)} classes: GradInversion names no class twice")
    if rule == "gradinversion":
        labels, reason = basic.gradinversion(weight_grad, total), "right for non-negative features, no class twice"
    else:
        labels, reason = basic.gradinversion_sum(weight_grad, total), "right for positive sums, no class twice"
    return _uncertified(labels, reason, {})


def _has_labelled_images(observation: Observation) -> bool:
    return observation.public_images is not None and observation.public_images.labels is not None


def _ilrg(observation: Observation, bias_grad: Float[Tensor, "classes"], total: int) -> Reconstruction:
    weight, bias = single_head(observation)
    smoothing = observation.protocol.label_smoothing
    counts = counting.ilrg_counts(weight, bias, shared(observation, "weight"), bias_grad, total, smoothing)
    values = {"rounding": float((counts - counts.round()).abs().max())}
    return _uncertified(basic.labels_of(counts, total), "each class is taken to have one feature", values)


def _proof(observation: Observation, total: int, rng: torch.Generator) -> Reconstruction | None:
    """Labels that alone explain the head's gradient, certified or not; None where there are none such."""
    if total > COUNTED_ALONE or head_is_exact(observation):
        return None
    try:
        found = features_of(observation, torch.device("cpu"), rng)
    except NotApplicable:
        return None
    if found.certified or not found.alone:
        return as_reconstruction(found) if found.certified else None
    reason = f"no other of {found.possible} possible counts explains the head's gradient, or nearly; {found.reason}"
    return as_reconstruction(replace(found, reason=reason))


def _from_bias(observation: Observation, rule: str, bias_grad: Float[Tensor, "classes"], total: int) -> Reconstruction:
    smoothing, probs = observation.protocol.label_smoothing, observation.auxiliary_probs
    values = {"sum": relative_sum(bias_grad)}
    if rule == "bias_prior" and probs is None:
        raise NotApplicable("bias_prior needs auxiliary pictures that the server may run its model on")
    if rule == "bias_sign":
        labels = basic.bias_sign(bias_grad, smoothing, sign_rounding(observation))
        return _uncertified(labels, "the set of classes without their counts", values)
    if rule != "bias_corrected" and probs is not None:
        counts = basic.prior_counts(bias_grad, probs.cpu(), total, smoothing)
        values["rounding"] = float((counts - counts.round()).abs().max())
        labels = basic.bias_prior(bias_grad, probs.cpu(), total, smoothing)
        alike = ", and each local step's examples to weigh alike" if observation.protocol.steps > 1 else ""
        return _uncertified(labels, f"the batch's mean softmax is taken from auxiliary pictures{alike}", values)
    labels = basic.bias_corrected(bias_grad, total, smoothing, sign_rounding(observation))
    return _uncertified(labels, "the batch's mean softmax is taken to be uniform", values)


def _uncertified(labels: Tensor, reason: str, values: dict[str, float]) -> Reconstruction:
    return Reconstruction(labels=labels, certificate=Certificate("uncertified", reason, values))
