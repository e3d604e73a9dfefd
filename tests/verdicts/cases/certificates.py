"""Runs in which a certificate says more, or less, than it should."""

from tests.verdicts.case import Case, PlannedRun, of_run
from tests.verdicts.expectations import card, counts, level, never, says
from tests.verdicts.lines import ended, failed, image, labels, line

UNNAMED = r"\d certificates? (was|were) granted,"
"""Without a word of what: a reader of a verdict on images takes it for one of an image."""
BLIND = [image(None, f"u/{n}", own=None, guess=None, label=None) for n in range(4)]

CASES = (
    Case(
        "certified and known wrong",
        "the server can tell that the image is right: it has 12 dB",
        of_run(PlannedRun(ended([12.0], certified=[0]))),
        (level("open"), says("wrong"), never(r"certified:? the server can tell")),
    ),
    Case(
        "certified guess",
        "a certificate on the mean image (24.2 dB, guess 24.2) breaks",
        of_run(PlannedRun(ended([24.2], guess=[24.2], certified=[0]))),
        (level("open"), says("wrong"), never("the server can tell that")),
    ),
    Case(
        "certified at 25 dB",
        "an image at 25 dB is what the certificate says it is: what the model saw, up to rounding",
        of_run(PlannedRun(ended([25.0], certified=[0]))),
        (level("open"), says("wrong"), never("the server can tell that")),
    ),
    Case(
        "one certificate right, one wrong",
        "both certificates are right",
        of_run(PlannedRun(ended([160.0, 12.0], certified=[0, 1]))),
        (level("broken"), says(r"wrong"), card("Certified", r"[12] of 2")),
    ),
    Case(
        "one certified of twenty",
        "one image is chance: a certificate is none",
        of_run(PlannedRun(ended([160.0] + [12.0] * 19, certified=[0]))),
        (level("broken"), counts(1, 20)),
    ),
    Case(
        "certified without the truth",
        "the likeness was measured",
        of_run(PlannedRun([line("rebuild", n, [BLIND[n]], certified=True, scored=False) for n in range(4)])),
        (level("broken"), never(r"\d dB"), never("recognisably")),
    ),
    Case(
        "returned without the truth",
        "4 images were rebuilt: nobody compared them",
        of_run(PlannedRun([line("rebuild", n, [BLIND[n]], scored=False) for n in range(4)])),
        (
            level("open", "not tested"),
            says("not (measured|compared)|no originals to compare"),
            never(r"\b0 of 4 .*recognis"),
        ),
    ),
    Case(
        "certified labels",
        "an image is certified: labels are",
        of_run(PlannedRun([*ended([11.0] * 4), *labels(4, certified=True)])),
        (level("open"), never(r"image (is|are) certified|All of the .* certified"), never(UNNAMED)),
    ),
    Case(
        "certified labels alone",
        "images were attacked",
        of_run(PlannedRun(labels(4, certified=True))),
        (level("not tested"), says("label"), never(UNNAMED)),
    ),
    Case(
        "a failed attack's certificate",
        "an attack that failed certified an image",
        of_run(PlannedRun(failed(2, certificate={"status": "certified", "reason": "", "values": {}}))),
        (level("not tested"),),
    ),
    Case(
        "certified as the model saw it",
        "the client's own image is certified: the shuffled one is",
        of_run(PlannedRun(ended([160.0], own=9.0, certified=[0]))),
        (level("broken"), says("as the model saw"), never("exact copy")),
    ),
    Case(
        "the image not rebuilt in a certified update",
        "both images of the update are certified: one came out",
        of_run(
            PlannedRun(
                [line("rebuild", 0, [image(160.0, "a"), image(None, "b", guess=9.0, picture=None)], certified=True)]
            )
        ),
        (level("broken"), counts(1, 2), card("Certified", "1 of 2")),
    ),
)
