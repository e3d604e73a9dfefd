"""Matrices in which a row looks better than it is."""

from tests.verdicts.case import Case
from tests.verdicts.cases.seen import MIXED
from tests.verdicts.expectations import (
    Expectation,
    colour,
    level_of,
    never,
    no_element,
    row,
    says,
)
from tests.verdicts.lines import Line, ended, failed, image, labels, line, refused
from tests.verdicts.matrix import PlannedRow, of_matrix

EVIL = "<img src=x onerror=alert(1)>"
NOTHING = r"\bno (image|picture) is recognisable"


MORE = never("no attack here rebuilt more|no more than a guess")
"""Chance may explain two images at 33 dB, and yet they are more than a guess has."""


UNDEFENDED = PlannedRow([ended([160.0] * 8, certified=range(8))], defended=False, accuracy=0.9)


def unplaced(name: str) -> tuple[Expectation, ...]:
    """What was not tested leaks no number of dB, and dominates nobody."""
    return row(name, "Leakage", "^–$"), row(name, "Pareto", "^$")


def _low(psnr: float, images: int) -> list[Line]:
    return ended([psnr] * images, guess=[24.2 + 1e-6 * n for n in range(images)])


def _batches(updates: int, psnr: float) -> list[Line]:
    """Updates of two images each."""
    return [
        line("rebuild", n, [image(psnr, f"d/{n}-{k}", guess=10 + n / 99 + k / 9) for k in range(2)])
        for n in range(updates)
    ]


CASES = (
    Case(
        "guess returned in a cell",
        "a recognisable cell: 24.2 dB, which the mean image has",
        of_matrix({"none": UNDEFENDED, "noise": PlannedRow([_low(24.2, 8)])}),
        (
            level_of("noise", "open"),
            row("noise", "Images", r"\b0 of 8\b"),
            colour("noise", "guess"),
        ),
    ),
    Case(
        "as the model saw them, uncertified",
        "pale: 8 images at 45 dB, shuffled, behind half precision",
        of_matrix({"none": UNDEFENDED, "jigsaw": PlannedRow([ended([45.0] * 8, own=9.0)])}),
        (level_of("jigsaw", "broken"), says("as the model saw"), never(NOTHING)),
    ),
    Case(
        "as the model saw them, 21 dB",
        "21 dB as the model saw it is not yet a leak",
        of_matrix({"none": UNDEFENDED, "jigsaw": PlannedRow([ended([21.0] * 8, own=9.0)])}),
        (level_of("jigsaw", "broken"), says("as the model saw")),
    ),
    Case(
        "as the model saw them, 19.9 dB",
        "19.9 dB as the model saw it is a leak",
        of_matrix({"none": UNDEFENDED, "jigsaw": PlannedRow([ended([19.9] * 8, own=9.0)])}),
        (level_of("jigsaw", "open"),),
    ),
    Case(
        "what the model saw is the guess",
        "24.5 dB as the model saw it shows something, where a mixed image is the mean image up to 24.2",
        of_matrix({"none": UNDEFENDED, "mixup": PlannedRow([MIXED])}),
        (level_of("mixup", "open"),),
    ),
    Case(
        "a pending cell",
        "no image is recognisable: half the audit is still to come",
        of_matrix({"none": UNDEFENDED, "noise": PlannedRow([ended([12.0] * 4)], updates=8)}),
        (level_of("noise", "not tested", "open"), never(NOTHING), says("not everything has been measured", "text")),
    ),
    Case(
        "a pending cell that has leaked already",
        "open, as the audit is not finished: 4 of 8 are certified",
        of_matrix({"none": UNDEFENDED, "noise": PlannedRow([ended([160.0] * 4, certified=range(4))], updates=8)}),
        (level_of("noise", "broken"),),
    ),
    Case(
        "refused everywhere",
        "no image is recognisable under it: no attack was made",
        of_matrix({"none": UNDEFENDED, "withhold": PlannedRow([refused(8)])}),
        (level_of("withhold", "not tested"), never(NOTHING), *unplaced("withhold")),
    ),
    Case(
        "an audit that could not be made",
        "no image is recognisable under it: the server sees sums alone",
        of_matrix({"none": UNDEFENDED, "sums": PlannedRow([], refused="the server sees sums alone")}),
        (level_of("sums", "not tested"), never(NOTHING)),
    ),
    Case(
        "failed everywhere",
        "no image is recognisable under it: the attack raised",
        of_matrix({"none": UNDEFENDED, "noise": PlannedRow([failed(8)])}),
        (level_of("noise", "not tested"), never(NOTHING), *unplaced("noise")),
    ),
    Case(
        "none of one beside one of twenty",
        "no image is recognisable under the second: one was tried",
        of_matrix(
            {
                "none": UNDEFENDED,
                "noise": PlannedRow([ended([25.0] + [12.0] * 19)]),
                "clip": PlannedRow([ended([12.0])]),
            }
        ),
        (level_of("noise", "open"), level_of("clip", "open"), row("clip", "Images", r"\b0 of 1\b")),
    ),
    Case(
        "two of two at 33 dB",
        "two images at 33 dB break it, or are nothing",
        of_matrix({"none": UNDEFENDED, "noise": PlannedRow([ended([33.0, 33.5])])}),
        (level_of("noise", "open"), row("noise", "Images", r"\b2 of 2\b"), never(NOTHING), MORE),
    ),
    Case(
        "updates of two images",
        "it leaks less than the undefended row: its updates hold two images",
        of_matrix({"none": UNDEFENDED, "mixup": PlannedRow([_batches(4, 12.0)])}),
        (level_of("mixup", "open"), row("mixup", "Images", r"\b0 of 8\b"), says("updates of 2")),
    ),
    Case(
        "one certified of twenty",
        "one of 20 is chance: it is certified",
        of_matrix({"none": UNDEFENDED, "noise": PlannedRow([ended([160.0] + [12.0] * 19, certified=[3, 0])])}),
        (level_of("noise", "broken"), row("noise", "Images", r"\b1 of 20\b"), never(NOTHING)),
    ),
    Case(
        "a certificate that is wrong",
        "an image is certified: it has 12 dB",
        of_matrix({"none": UNDEFENDED, "noise": PlannedRow([ended([12.0] * 8, certified=[0])])}),
        (level_of("noise", "open"),),
    ),
    Case(
        "certified at 25 dB",
        "a certificate that 25 dB belie breaks",
        of_matrix({"none": UNDEFENDED, "noise": PlannedRow([ended([25.0] + [12.0] * 7, certified=[0])])}),
        (level_of("noise", "open"),),
    ),
    Case(
        "two attacks, half each",
        "at most half leak: either attack takes the other's half",
        of_matrix(
            {
                "none": UNDEFENDED,
                "noise": PlannedRow([[*ended([40.0, 41.0, 9.0, 9.5]), *ended([9.0, 9.5, 30.0, 31.0], "search")]]),
            },
            ("rebuild", "search"),
        ),
        (level_of("noise", "broken"), row("noise", "Images", r"\b4 of 4\b")),
    ),
    Case(
        "one image twenty times",
        "20 of 20 leak: it is one image",
        of_matrix({"none": UNDEFENDED, "noise": PlannedRow([ended([35.0] * 20, names=["digits/1"] * 20)])}),
        (level_of("noise", "open"), row("noise", "Images", r"\b1 of 1\b")),
    ),
    Case(
        "trained leaks, untrained does not",
        "the row is what its first state is",
        of_matrix({"noise": PlannedRow([ended([12.0] * 8), ended([40.0] * 8)])}),
        (level_of("noise", "broken"),),
    ),
    Case(
        "a baseline alone",
        "8 of 8 leak: to what never reads an update",
        of_matrix(
            {"noise": PlannedRow([ended([30.0] * 8, "samples", baseline=True)])},
            ("samples",),
            ("samples",),
        ),
        (level_of("noise", "not tested"), never("reaches")),
    ),
    Case(
        "labels alone",
        "no image is recognisable: none was attacked",
        of_matrix({"none": PlannedRow([labels(8)], defended=False), "noise": PlannedRow([labels(8)])}, ("labels",)),
        (level_of("noise", "not tested"), never(NOTHING), *unplaced("noise")),
    ),
    Case(
        "a baseline as good as the attack",
        "the attack took 8 images, which another that reads nothing has as well",
        of_matrix(
            {"none": PlannedRow([[*ended([22.0] * 8), *ended([22.0] * 8, "samples", baseline=True)]], defended=False)},
            ("rebuild", "samples"),
            ("samples",),
        ),
        (level_of("none", "open"),),
    ),
    Case(
        "an earlier version's matrix",
        "the rows were judged by what is broken or open now",
        of_matrix({"none": UNDEFENDED, "noise": PlannedRow([ended([33.0, 33.5])])}, old=True),
        (level_of("noise", "–"), says("earlier version"), never(NOTHING), never(r"\b(broken|open): \d")),
    ),
    Case(
        "no undefended row",
        "the defense is what keeps the images",
        of_matrix({"noise": PlannedRow([ended([12.0] * 8)])}),
        (level_of("noise", "open"), never("without a defense")),
    ),
    Case(
        "accuracy of four test images",
        "the second is the more accurate one: by one of four images",
        of_matrix(
            {
                "none": UNDEFENDED,
                "noise": PlannedRow([ended([12.0] * 8)], accuracy=0.75),
                "clip": PlannedRow([ended([12.0] * 8)], accuracy=0.5),
            },
            tested=4,
        ),
        (says("chance|± "), says("test images?: 4", "terminal"), says(r"\b4 test images?|± [3-9]\d", "text")),
    ),
    Case(
        "names that are HTML",
        "the page is what a name in the settings makes of it",
        of_matrix({f"noise{EVIL}": PlannedRow([ended([12.0] * 8)])}),
        (level_of("noise", "open"), no_element("img", "onerror")),
    ),
    Case(
        "half of the updates refused",
        "0 of 8 leak: four were never tried",
        of_matrix({"none": UNDEFENDED, "noise": PlannedRow([[*ended([12.0] * 4), *refused(4, first=4)]])}),
        (level_of("noise", "open"), says("refused on 4 of 8", "text"), row("noise", "Images", r"\b0 of 4\b")),
    ),
)
