"""Label counts from what public images tell of each class: their examples' share in the head's gradient.

An example k of class c adds X_k = (p_k - y_k) [h_k, 1]ᵀ to B times the gradient of the head's weight and bias. With the
mean and the covariance of X in each class, B·g is Gaussian around Σ_c n_c E[X | c], linear in the counts, with
covariance Σ_c n_c Cov[X | c]: generalised least squares. One class's features alone tell nothing of p̄; that p_k is a
function of the h_k that the weight's gradient shows is what the covariance knows.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.label.counts.possible import whole_counts

MOST_MOMENTS = 640
"""Numbers of X that are kept: of its features only the directions that tell most."""
DIRECTIONS_A_CLASS = 2
"""The head reads C - 1 directions, and as many tell classes apart."""
SHRINKAGE = 0.03
"""Share of the diagonal in a covariance: there are few images, and many moments."""
POOLED = 10
"""As many images as the mean covariance of all classes counts for beside a class's own."""
ROUNDS = 3
"""The covariance depends on the counts: from equal ones, so often."""


@dataclass(frozen=True)
class ClassMoments:
    """Mean and covariance of an example's share X, by class, in some directions of the features.

    Attributes:
        directions: which the features are projected on.
        images: that each class's moments come from.
    """

    directions: Float[Tensor, "features kept"]
    means: Float[Tensor, "classes moments"]
    covariances: Float[Tensor, "classes moments moments"]
    images: Float[Tensor, "classes"]

    def read(
        self, weight_grad: Float[Tensor, "classes features"], bias_grad: Float[Tensor, "classes"]
    ) -> Float[Tensor, "moments"]:
        """The moments of a gradient of the head."""
        return torch.cat([weight_grad.double() @ self.directions, bias_grad.double()[:, None]], dim=1).flatten()


@dataclass(frozen=True)
class CountFit:
    """The likeliest counts.

    Attributes:
        misfit: squared error of a moment in units of its variance; about 1 where the batch is like the images.
    """

    counts: Int[Tensor, "classes"]
    misfit: float


def shares(
    head_weight: Float[Tensor, "classes features"],
    head_bias: Float[Tensor, "classes"],
    features: Float[Tensor, "n features"],
    label: int,
    label_smoothing: float = 0.0,
    directions: Float[Tensor, "features kept"] | None = None,
) -> Float[Tensor, "n moments"]:
    """X of each example if it had this label."""
    errors = (features @ head_weight.T + head_bias).softmax(dim=1) - label_smoothing / len(head_bias)
    errors[:, label] -= 1.0 - label_smoothing
    read = features if directions is None else features @ directions
    return torch.einsum("nc,nf->ncf", errors, torch.cat([read, read.new_ones(len(read), 1)], dim=1)).flatten(1)


def class_moments(
    head_weight: Float[Tensor, "classes features"],
    head_bias: Float[Tensor, "classes"],
    features: Float[Tensor, "n features"],
    belongs: Float[Tensor, "n classes"],
    label_smoothing: float = 0.0,
) -> ClassMoments:
    """From images that belong to classes: one-hot labels, or the model's own softmax, right where it is calibrated.

    Raises:
        ValueError: a class without images, or of one alone.
    """
    weight, bias, features = head_weight.double(), head_bias.double(), features.double()
    belongs = belongs.double() / belongs.double().sum(dim=0).clamp(min=1e-300)
    images = 1.0 / belongs.square().sum(dim=0).clamp(min=1e-300)
    if float(belongs.sum(dim=0).min()) < 0.5 or float(images.min()) < 1.5:
        raise ValueError("every class must have two images or more")
    directions = telling_directions(weight, features, belongs)
    means, covariances = [], []
    for label, part in enumerate(belongs.T):
        own = part > 0
        found = shares(weight, bias, features[own], label, label_smoothing, directions)
        mean = part[own] @ found
        scatter = (found - mean) * part[own].sqrt()[:, None]
        means.append(mean)
        covariances.append(scatter.T @ scatter / (1.0 - 1.0 / images[label]))
    own = torch.stack(covariances)
    pooled = (images[:, None, None] * own + POOLED * own.mean(dim=0)) / (images + POOLED)[:, None, None]
    return ClassMoments(directions, torch.stack(means), pooled, images)


def telling_directions(
    head_weight: Float[Tensor, "classes features"],
    features: Float[Tensor, "n features"],
    belongs: Float[Tensor, "n classes"],
) -> Float[Tensor, "features kept"]:
    """Directions that the head reads or that tell classes apart, those of the largest scatter within a class first."""
    classes, width = head_weight.shape
    centres = belongs.T @ features
    overall = (belongs.sum(dim=1) / classes)[:, None]
    total = features - centres.mean(dim=0)
    between = centres - centres.mean(dim=0)
    within = total.T @ (overall * total) - between.T @ between / classes
    within = within + 0.05 * within.diagonal().mean() * torch.eye(width).to(within)
    values, vectors = torch.linalg.eigh(within)
    values = values.clamp(min=max(1e-12 * float(values.max()), 1e-300))
    read = (head_weight - head_weight.mean(dim=0)) @ (vectors * values.sqrt()) @ vectors.T
    apart = between @ (vectors / values.sqrt()) @ vectors.T
    _, sizes, whitened = torch.linalg.svd(torch.cat([read, apart]), full_matrices=False)
    kept = min(DIRECTIONS_A_CLASS * classes, MOST_MOMENTS // classes - 1, int((sizes > 1e-8 * sizes[0]).sum()))
    found: Tensor = (vectors / values.sqrt()) @ vectors.T @ whitened[: max(kept, 0)].T
    return found


def fit_counts(
    moments: ClassMoments,
    weight_grad: Float[Tensor, "classes features"],
    bias_grad: Float[Tensor, "classes"],
    least: Int[Tensor, "classes"],
    batch_size: int,
    added: Float[Tensor, "moments moments"] | float = 0.0,
) -> CountFit:
    """The counts under which B·g is likeliest, of those that are at least `least` and sum to B.

    A class's mean is known to Cov/N of its N images: n of its labels count for the n + n²/N that n images of it, and n
    times their mean, vary by. Beforehand any mixture of classes is as likely, which gives counts the variance of the
    Dirichlet-multinomial: where the gradient tells nothing they are equal. A gradient that the moments explain badly
    counts for less, by its misfit.

    Args:
        added: covariance of whatever else is in B·g: `noise_covariance`, local steps.
    """
    classes = len(bias_grad)
    seen = batch_size * moments.read(weight_grad, bias_grad)
    spread = moments.covariances.mean(dim=0).diagonal()
    spread = spread.clamp(min=1e-9 * float(spread.max())) + 1e-12 * float(moments.means.square().max())
    counts, scale = torch.full((classes,), batch_size / classes, dtype=torch.float64), 1.0
    variance = batch_size * (classes - 1) * (batch_size + classes) / (classes**2 * (classes + 1))
    for _ in range(ROUNDS):
        taken = counts.clamp(min=0.1)
        taken = taken + taken.square() / moments.images
        covariance = (1.0 - SHRINKAGE) * torch.einsum("c,cij->ij", taken, moments.covariances) + added
        covariance += SHRINKAGE * float(taken.sum()) * spread.diag()
        factor = torch.linalg.cholesky(covariance)
        columns = torch.cat([moments.means.T, seen[:, None]], dim=1)
        whitened = torch.linalg.solve_triangular(factor, columns, upper=False)
        means, target = whitened[:, :-1], whitened[:, -1]
        precision = means.T @ means
        tie = 1e4 * float(precision.diagonal().mean())  # to Σ n = B
        posterior = precision / scale + torch.eye(classes).double() / variance
        known = means.T @ target / scale + batch_size / classes / variance
        centre = torch.linalg.solve(posterior + tie, known + tie * batch_size)
        whole = whole_counts(posterior, centre, least, batch_size)
        counts = whole.double()
        misfit = float((target - means @ counts).square().mean())
        scale = max(1.0, misfit)
    return CountFit(whole, misfit)


def noise_covariance(
    moments: ClassMoments, noise: tuple[float, float], batch_size: int
) -> Float[Tensor, "moments moments"]:
    """Of what is read of B·g, where noise of these variances was added to each number of weight and bias."""
    kept = moments.directions.shape[1]
    one = torch.zeros(kept + 1, kept + 1, dtype=torch.float64)
    one[:kept, :kept] = noise[0] * moments.directions.T @ moments.directions
    one[kept, kept] = noise[1]
    return torch.kron(torch.eye(len(moments.means), dtype=torch.float64), batch_size**2 * one)
