"""timm, with this package's own models registered.

Imported where a model is named or built and nowhere else: timm brings torchvision and torch's compiler along, which
takes longer than torch itself.
"""

import timm

from fedsim.models.zoo import cnn_rgap, lenet, mlp, nano, resnet, swin  # noqa: F401 (each registers its models)

__all__ = ["timm"]
