"""Runs in which something is missing, torn, refused, or not what it looks like."""

from tests.verdicts.case import Case, PlannedRun, of_run
from tests.verdicts.expectations import (
    card,
    column,
    counts,
    level,
    never,
    no_element,
    says,
)
from tests.verdicts.lines import Line, ended, failed, hidden, image, labels, line, refused

EVIL = "<img src=x onerror=alert(1)>"


def _old() -> list[Line]:
    """Without what later versions wrote."""
    lines = ended([25.0] * 4)
    new = ("guess_psnr", "seen_guess_psnr", "private_psnr", "private_ssim", "private_mse", "private_lpips")
    for one in lines:
        one["images"] = [{key: value for key, value in row.items() if key not in new} for row in one["images"]]
        del one["baseline"], one["labels"], one["certificate"]
    return lines


CASES = (
    Case("no attack", "nothing can be learned", of_run(PlannedRun()), (level("not tested"), never("no image"))),
    Case(
        "attack never ran",
        "the attack that was configured found nothing",
        of_run(PlannedRun(attack="{rebuild: {}}")),
        (level("not tested"),),
    ),
    Case(
        "all refused",
        "nothing was rebuilt: nothing was tried",
        of_run(PlannedRun(refused(4))),
        (level("not tested"), says("refused"), never(r"none of the|0 of 4\b")),
    ),
    Case(
        "refused, and another failed",
        "nothing was rebuilt",
        of_run(PlannedRun([*refused(4), *failed(4, "search")])),
        (level("not tested"), says("refused"), says("fail")),
    ),
    Case(
        "all failed",
        "nothing was rebuilt",
        of_run(PlannedRun(failed(4))),
        (level("not tested"), says("fail|came to an end")),
    ),
    Case(
        "half refused",
        "two of two updates that served is four of four",
        of_run(PlannedRun([*ended([50.0, 51.0]), *refused(2, first=2)])),
        (level("open"), says(r"\b2 of (the )?(2|4)\b")),
    ),
    Case(
        "half refused, the rest not rebuilt",
        "none of four was rebuilt: two were never tried",
        of_run(PlannedRun([*ended([12.0, 11.0]), *refused(2, first=2)])),
        (level("open"), says("refused"), never("0 of (the )?4|none of the 4")),
    ),
    Case(
        "half failed, the rest not rebuilt",
        "none of four was rebuilt: what two would have given is not known",
        of_run(PlannedRun([*ended([12.0, 11.0]), *failed(2, first=2)])),
        (level("open"), says("failed"), never("0 of (the )?4|none of the 4")),
    ),
    Case(
        "labels alone",
        "the images are what was attacked",
        of_run(PlannedRun(labels(4))),
        (level("not tested"), says("label")),
    ),
    Case(
        "a search without an image",
        "the search was a test: it ended without an image",
        of_run(
            PlannedRun([line("search", n, [hidden(f"d/{n}")], trace=[{"step": 1.0, "loss": 2.0}]) for n in range(4)])
        ),
        (level("not tested"), never("0 of 4|none of the")),
    ),
    Case(
        "PSNR is no number",
        "an image that could not be compared is not recognisable",
        of_run(PlannedRun(ended([float("nan")] * 4))),
        (
            level("open", "not tested"),
            never(r"\bnan\b"),
            never("0 of 4 .*recognis|none of the 4"),
            never(r"\bnan\b", "text"),
            never("without audit"),
        ),
    ),
    Case(
        "PSNR is infinite",
        "an exact copy is none, because its PSNR is no finite number",
        of_run(PlannedRun(ended([float("inf")] * 4))),
        (
            level("open", "broken", "not tested"),
            never("0 of 4 .*recognis|none of the 4"),
            never(r"\binf(inity)?\b", "text"),
        ),
    ),
    Case(
        "just below",
        "the best result is 20.0 dB",
        of_run(PlannedRun(ended([19.97] * 4))),
        (level("open"), counts(0, 4), never(r"\b20\.0 dB"), never(r"\b20\.0 dB", "terminal")),
    ),
    Case(
        "fewer images told than were there",
        "one of one: the update held 8",
        of_run(PlannedRun([line("rebuild", 0, [image(40.0, "digits/0")], batch_size=8)])),
        (level("open"), counts(1, 8)),
    ),
    Case(
        "a sum of four clients",
        "two images are one, because two clients gave them one name",
        of_run(
            PlannedRun(
                [
                    line(
                        "rebuild",
                        0,
                        [image(12.0, "0.png", guess=9.0), image(11.0, "0.png", guess=9.5)],
                        client="0 (sum of 4 clients)",
                        batch_size=2,
                    )
                ]
            )
        ),
        (level("open"), counts(0, 2)),
    ),
    Case(
        "names that are HTML",
        "the page is what a client's file name makes of it",
        of_run(PlannedRun([line(EVIL, n, [image(40.0, f"{EVIL}/{n}", guess=10 + n / 9)]) for n in range(4)])),
        (level("broken"), counts(4, 4), no_element("img", "onerror")),
    ),
    Case(
        "an earlier version's folder",
        "its results were held against a guess",
        of_run(PlannedRun(_old(), state="old")),
        (counts(4, 4), says(r"no guess|guess (was|is|were) not|not held against a guess|without a guess|recorded")),
    ),
    Case(
        "unfinished",
        "the run tells all that it would have told",
        of_run(PlannedRun(ended([12.0] * 4), state="unfinished")),
        (level("open"), says("did not finish|unfinished"), says("unfinished", "terminal")),
    ),
    Case(
        "a torn line",
        "four updates were all",
        of_run(PlannedRun(ended([12.0] * 4), torn='{"observation": "round-0000-client-0004", "att\n')),
        (level("open"), says("could not be read|damaged", "text")),
    ),
    Case(
        "four test images",
        "75 % is an accuracy that one can compare",
        of_run(PlannedRun(ended([12.0] * 20), test_images=4)),
        (card("Final accuracy", r"\b4 test"), says(r"\b4 test images?"), says(r"\b4 test images?|^[^%]*$", "terminal")),
    ),
    Case(
        "unknown number of test images",
        "the accuracy rests on many",
        of_run(PlannedRun(ended([12.0] * 20), state="old")),
        (card("Final accuracy", "not (known|recorded|stated)|unknown"),),
    ),
    Case(
        "an audit has no accuracy",
        "the model is as accurate as before",
        of_run(PlannedRun(ended([12.0] * 20), kind="audit")),
        (level("open"), never(r"classified \d"), says("no accuracy")),
    ),
    Case(
        "two observed images",
        "two images are a study: tile, page and terminal say how many",
        of_run(PlannedRun(ended([12.0, 11.0]))),
        (level("open"), counts(0, 2), counts(0, 2, "terminal"), card("Recognisable", "0 of 2")),
    ),
    Case(
        "half precision",
        "57 dB is less than 160: both are beyond what an eye sees",
        of_run(PlannedRun(ended([57.0] * 4), "{half: {}}")),
        (level("broken"), counts(4, 4), column("Least PSNR", r"57\.0")),
    ),
)
