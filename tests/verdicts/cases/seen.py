"""Runs in which a defense changed the images before the model saw them."""

from tests.verdicts.case import Case, PlannedRun, of_run
from tests.verdicts.expectations import card, counts, least_below_mean, level, never, says
from tests.verdicts.lines import ended, image, line

JIGSAW = "{mjp_jp: {ratio: 0.9}, half: {}}"
MIRROR = "{ats: {policies: [], flip: true}, half: {}}"

MIXED = [
    line("rebuild", n, [image(24.5, f"d/{n}", own=9.0, guess=10.0 + 1e-6 * n, seen_guess_psnr=24.2)]) for n in range(8)
]

CASES = (
    Case(
        "jigsaw and half precision",
        "nothing leaked: 8 images at 45 dB as the model saw them, shuffled",
        of_run(PlannedRun(ended([45.0 + n for n in range(8)], own=9.0), JIGSAW)),
        (level("broken"), counts(8, 8), says("as the model saw"), says("as the model saw", "terminal")),
    ),
    Case(
        "every other image mirrored",
        "half the images stayed private: the other half was rebuilt mirrored",
        of_run(PlannedRun(ended([45.0] * 8, own=[45.0, 12.0] * 4), MIRROR)),
        (level("broken"), says("as the model saw"), never(r"4 of (the )?8 .*(stay|kept|only)")),
    ),
    Case(
        "as seen from 20 dB",
        "21 dB as the model saw it is not yet a leak",
        of_run(PlannedRun(ended([21.0] * 4, own=9.0), JIGSAW)),
        (level("broken"), counts(4, 4), says("as the model saw")),
    ),
    Case(
        "as seen below 20 dB",
        "19.9 dB as the model saw it is a leak",
        of_run(PlannedRun(ended([19.9] * 4, own=9.0), JIGSAW)),
        (level("open"), counts(0, 4)),
    ),
    Case(
        "as seen, and the guess is as good",
        "24.5 dB as the model saw it shows something, where the mean image has 24.2",
        of_run(PlannedRun(ended([24.5] * 8, own=23.0, guess=[24.2 + 1e-6 * n for n in range(8)]), MIRROR)),
        (level("open"), counts(0, 8), never("it takes at least 4")),
    ),
    Case(
        "what the model saw is the guess",
        "24.5 dB as the model saw it shows something, where a mixed image is the mean image up to 24.2",
        of_run(PlannedRun(MIXED, "{mixup: {}}")),
        (
            level("open"),
            counts(0, 8),
        ),
    ),
    Case(
        "two of two as the model saw them",
        "two images at 45 dB are no leak worth a count",
        of_run(PlannedRun(ended([45.0, 46.0], own=9.0), JIGSAW)),
        (
            level("open"),
            counts(2, 2),
            says("as the model saw"),
            card("Recognisable", r"\b2 of 2"),
            never("chance explains"),
        ),
    ),
    Case(
        "a symmetric image mirrored",
        "the image was changed, so it is not the client's own",
        of_run(PlannedRun(ended([45.0] * 4, own=45.0), MIRROR)),
        (level("broken"), counts(4, 4), never("as the model saw")),
    ),
    Case(
        "mean below its least",
        "the worst image has 25 dB where their mean has 15: one is as seen, the other the client's own",
        of_run(PlannedRun(ended([15.0] * 4, own=[25.0, 26.0, 27.0, 28.0]), MIRROR)),
        (level("broken"), least_below_mean()),
    ),
    Case(
        "one form of an image of twenty",
        "20 images as the model saw them: it saw one image in 20 forms",
        of_run(PlannedRun(ended([45.0] * 20, own=9.0, names=["digits/1"] * 20), MIRROR)),
        (level("open"), says("as the model saw"), says(r"1 different|one (different )?image|1 of 1\b")),
    ),
)
