"""Features in front of the classifier are those that the shared gradient gives away."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attacks.optimization.priors.base import Prior, PriorTerm
from attacks.optimization.priors.recorded_inputs import recorded_inputs
from attacks.victim import make_victim
from fedsim.effects import AddsNoise, Quantises
from fedsim.errors import NotApplicable, one_of
from fedsim.observation import Observation

MAX_FEATURE_ERROR = 0.1
"""Targets that may be further off, relative to their size, pull to nowhere: features of one class differ by little."""
SOURCES = ("head_rows", "centred_head_rows", "certificate")


class FeatureTarget(Prior):
    """The relative squared distance of a candidate's final features from a target for each picture.

    Args:
        source: `head_rows`: `head_row_features`, for pictures whose label occurs once; the others go without.
            `centred_head_rows`: `centred_head_row_features`, better in batches. `certificate`: the features that come
            with certified labels, for every picture; refused where rounding leaves them open (`feature_error`).
    """

    def __init__(
        self, weight: float | int, source: str = "head_rows", start: float | int = 0.0, end: float | int = 1.0
    ) -> None:
        super().__init__(weight, start, end)
        one_of("prior.source", source, SOURCES)
        self.source = source

    def prepare(self, observation: Observation, labels: Tensor | None, device: torch.device) -> PriorTerm:
        """Raises NotApplicable without labels, a linear head, or what the source needs."""
        if labels is None or labels.is_floating_point():
            raise NotApplicable("feature targets need a class for each picture")
        if not observation.roles.head_weights:
            raise NotApplicable(f"{observation.architecture.spec.name} has no linear classifier")
        if self.source == "certificate":
            pictures, targets = _certified(observation, labels.cpu(), device)
        else:
            pictures, targets = _from_head(observation, labels.cpu(), centred=self.source == "centred_head_rows")
        victim = make_victim(observation, observation.gradient, device, fused_attention=False)
        dtype = next(iter(victim.params.values())).dtype
        heads = {name: victim.model.get_submodule(name.rpartition(".")[0]) for name in observation.roles.head_weights}
        width = sum(head.weight.shape[1] for head in heads.values() if isinstance(head, nn.Linear))
        if targets.shape[1] != width:
            raise NotApplicable(f"features of width {targets.shape[1]} for classifiers that read {width}")
        chosen, wanted = pictures.to(device), targets.to(device, dtype)

        def term(images: Tensor) -> Tensor:
            found = head_inputs(partial(victim.scores, victim.params), heads, images)
            return feature_distance(found.index_select(0, chosen), wanted)

        return term


def feature_distance(
    features: Float[Tensor, "pictures features"], targets: Float[Tensor, "pictures features"]
) -> Float[Tensor, ""]:
    """The mean over pictures of ‖h - ĥ‖² / ‖ĥ‖²."""
    return ((features - targets).square().sum(dim=1) / targets.square().sum(dim=1)).mean()


def head_inputs(
    model: Callable[[Tensor], Tensor],
    heads: Mapping[str, nn.Module],
    images: Float[Tensor, "batch channels height width"],
) -> Float[Tensor, "batch features"]:
    """What the classifiers read, side by side in the order of `heads`."""
    with recorded_inputs(heads) as recorded:
        model(images)
    inputs = dict(recorded)
    return torch.cat([inputs[name] for name in heads], dim=1)


def head_row_features(
    weight_grad: Float[Tensor, "classes features"],
    bias_grad: Float[Tensor, "classes"],
    classes: Int[Tensor, "pictures"],
) -> Float[Tensor, "pictures features"]:
    """ĥ = g_W[c] / g_b[c], a row for each class of a label that occurs once in the batch.

    g_W[c] = (1/B)(Σ_k p_kc h_k - h_c) and g_b[c] = (1/B)(Σ_k p_kc - 1): exact for one example and where p_kc is small
    for all k, as with many classes. Else the other pictures shine through with Σ_k p_kc / (1 - Σ_k p_kc). Scaling the
    gradient, as clipping does, changes nothing.
    """
    return weight_grad[classes] / bias_grad[classes, None]


def centred_head_row_features(
    weight_grad: Float[Tensor, "classes features"],
    bias_grad: Float[Tensor, "classes"],
    labels: Int[Tensor, "batch"],
    classes: Int[Tensor, "pictures"],
    label_smoothing: float | int = 0.0,
) -> Float[Tensor, "pictures features"]:
    """ĥ_c = B/(1-ε) (s h̄ - g_W[c]) with s = g_b[c] + (1-ε)/B, for classes whose label occurs once.

    The mean feature h̄ = Σ g_W[c'] / Σ g_b[c'] is read off the classes c' that are not in the batch, and stands in for
    Σ_k p_kc h_k / Σ_k p_kc. Exact for one example, and where p_k is the same for all k, as it nearly is at
    initialisation. The gradient must be of its true size: not of a clipped update.
    """
    absent = torch.ones_like(bias_grad, dtype=torch.bool)
    absent[labels] = False
    mean_feature = weight_grad[absent].sum(dim=0) / bias_grad[absent].sum()
    share = (1.0 - label_smoothing) / len(labels)
    spread = (bias_grad[classes] + share)[:, None] * mean_feature
    return (spread - weight_grad[classes]) / share


def _from_head(
    observation: Observation, labels: Int[Tensor, "batch"], centred: bool
) -> tuple[Int[Tensor, "pictures"], Float[Tensor, "pictures features"]]:
    """The numbers of the pictures that have a target, and the targets."""
    roles, protocol, gradient = observation.roles, observation.protocol, observation.gradient
    # Errors around the true size move a target as they do without centring; a scale that changed moves it anywhere.
    errors = AddsNoise | Quantises
    if centred and not all(one.keeps("head") or isinstance(one, errors) for one in observation.effects):
        raise NotApplicable("centred head rows need the head's gradient in its true size: source=head_rows does not")
    if protocol.steps > 1:
        raise NotApplicable(f"head rows mix the features of {protocol.steps} local steps")
    if len(roles.head_biases) != len(roles.head_weights):
        raise NotApplicable("head rows are divided by the gradient of the head's bias: it has none")
    for name in (*roles.head_weights, *roles.head_biases):
        observation.gradient_named(name)
    once = [n for n, label in enumerate(labels.tolist()) if int((labels == label).sum()) == 1]
    if not once:
        raise NotApplicable("every label occurs more than once: its head row mixes several pictures")
    images = torch.tensor(once)
    classes = labels[images]
    targets = []
    for weight, bias in zip(roles.head_weights, roles.head_biases, strict=True):
        # averaging the logits of m heads divides the gradient of each by m
        weight_grad = gradient[weight].cpu() * len(roles.head_weights)
        bias_grad = gradient[bias].cpu() * len(roles.head_weights)
        if centred:
            if len(labels.unique()) == len(bias_grad):
                raise NotApplicable("every class is in the batch: none is left to read the mean feature off")
            found = centred_head_row_features(weight_grad, bias_grad, labels, classes, protocol.label_smoothing)
        else:
            found = head_row_features(weight_grad, bias_grad, classes)
        targets.append(found)
    joined = torch.cat(targets, dim=1)
    if not bool(joined.isfinite().all()) or not bool(joined.any(dim=1).all()):
        raise NotApplicable("the head's gradient is zero for a class of the batch")
    return images, joined


def _certified(
    observation: Observation, labels: Int[Tensor, "batch"], device: torch.device
) -> tuple[Int[Tensor, "pictures"], Float[Tensor, "pictures features"]]:
    """Pictures of the same label may be named in any order: the features decide it."""
    from attacks.label.certified import features_of  # its search is costly: only where it is asked for

    found = features_of(observation, device, torch.Generator().manual_seed(0))
    if not found.certified:
        raise NotApplicable(f"the labels are not certified: {found.reason}")
    if found.feature_error > MAX_FEATURE_ERROR:
        off = f"{found.feature_error:.0%} off" if found.feature_error < 1 else "all error"
        raise NotApplicable(f"the labels are certified, the features may be {off}")
    order = labels.argsort(stable=True)
    if labels[order].tolist() != found.labels.tolist():
        raise NotApplicable("the certified labels are not those of the attack")
    return order, found.features.detach().cpu()
