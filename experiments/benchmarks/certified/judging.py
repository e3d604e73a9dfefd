"""Whether a certificate kept its word: the only place of the sweep that holds a result against the truth."""

import math
from collections import Counter
from dataclasses import dataclass

from fedsim.ground_truth import GroundTruth
from fedsim.metrics.image import psnr
from fedsim.metrics.matching import match
from fedsim.result import AttackResult

EXACT = 58.0
"""dB. What a certified image has at least, whatever its promise: rounding to 8 bits costs 59 dB."""

SHOWN = 130.0
"""dB up to which a promise is tested: the model saw pixels that were normalised in float32, an error of 140 dB."""


@dataclass(frozen=True)
class Judgement:
    """A certificate against the truth.

    Attributes:
        promised: dB of each image, at most `SHOWN`; None of labels, and where the certificate names no number.
        true: dB of the worst image, None of labels. An image without an original has 0.
        fault: empty for a certificate that kept its word; `image` for less than `EXACT`, `promise` for less than was
            promised, `labels` for other counts than the client's.
        label_fault: labels that came with certified images are not the client's.
    """

    promised: float | None = None
    true: float | None = None
    fault: str = ""
    label_fault: bool = False

    @property
    def margin(self) -> float | None:
        """dB above what was promised, or above `EXACT`."""
        return None if self.true is None else self.true - max(self.promised or EXACT, EXACT)


def judge(rebuilt: AttackResult, truth: GroundTruth) -> Judgement:
    """Judge a certified result.

    Raises:
        ValueError: it is not certified, or holds neither images nor labels.
    """
    if not rebuilt.certificate.certified:
        raise ValueError("an uncertified result promises nothing")
    own = Counter(truth.labels[list(dict.fromkeys(truth.sources))].tolist())
    named = None if rebuilt.labels is None else Counter(rebuilt.labels.tolist())
    if rebuilt.images is None:
        if named is None:
            raise ValueError("a certificate of nothing")
        return Judgement(fault="" if named == own else "labels")
    values = rebuilt.certificate.values
    asked = values.get("promised_psnr", values.get("expected_psnr"))
    promised = None if asked is None else min(asked, SHOWN)
    true = _worst(rebuilt, truth)
    # Written so that NaN is a fault.
    fault = "" if true >= max(promised or EXACT, EXACT) else "promise" if true >= EXACT else "image"
    return Judgement(promised, true, fault, named is not None and bool(named - own))


def _worst(rebuilt: AttackResult, truth: GroundTruth) -> float:
    """dB of the worst image, matched with what the model saw as the scorer does it."""
    assert rebuilt.images is not None
    images = rebuilt.images.double().clamp(0, 1)
    originals = truth.images.double().clamp(0, 1)
    pairs = {candidate: place for place, candidate in enumerate(match(originals, images)) if candidate is not None}
    if not len(images) or len(pairs) < len(images):
        return 0.0
    found = psnr(images, originals[[pairs[number] for number in range(len(images))]])
    return min((value if math.isfinite(value) else 0.0) for value in found.tolist())
