"""Pictures with labels: where they come from, and who holds them; `fedsim.data.hub` is imported by name."""

from fedsim.data.embedded import Digits, Photos
from fedsim.data.federated import FederatedData
from fedsim.data.image_set import ImageSet
from fedsim.data.imagefolder import ImageFolder
from fedsim.data.sources import Source, Splits

__all__ = ["Digits", "FederatedData", "ImageFolder", "ImageSet", "Photos", "Source", "Splits"]
