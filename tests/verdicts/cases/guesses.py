"""Runs in which chance, or what is known without any update, looks like a leak."""

from tests.verdicts.case import Case, PlannedRun, of_run
from tests.verdicts.expectations import card, counts, level, never, says
from tests.verdicts.lines import ended, image, line

LOW = [24.2 + 1e-6 * n for n in range(20)]
"""The mean image against 20 low-contrast ones."""
BY_CHANCE = "chance explains"
"""Too few images exclude no chance; what comes out at 33 dB is not explained by it."""

CASES = (
    Case(
        "guess returned",
        "20 low-contrast images were rebuilt recognisably, where the attack returned the mean image",
        of_run(PlannedRun(ended(LOW, guess=LOW))),
        (level("open"), counts(0, 20), card("Recognisable", r"\b0 of 20"), never("rebuilt all|rebuilt the")),
    ),
    Case(
        "guess nearly returned",
        "half a dB above the guess is a leak",
        of_run(PlannedRun(ended([24.7] * 20, guess=LOW))),
        (level("open"), counts(0, 20), card("Recognisable", r"\b0 of 20"), never("rebuilt all")),
    ),
    Case(
        "beyond the guess by less than its margin",
        "four of four: they are above 20 dB, and 0.9 dB above the guess",
        of_run(PlannedRun(ended([25.1] * 4, guess=LOW[:4]))),
        (level("open"), counts(0, 4), never("it takes at least 4")),
    ),
    Case(
        "a baseline has one of four",
        "4 of 4 against 1 of 4 is more than chance (p = 0.07)",
        of_run(PlannedRun([*ended([26.0] * 4), *ended([26.0, 12.0, 12.0, 12.0], "samples", baseline=True)])),
        (
            level("open"),
            counts(4, 4),
            says("without the update: 1 of 4"),
            says("without the update: 1 of 4", "terminal"),
        ),
    ),
    Case(
        "low contrast, rebuilt all the same",
        "20 uncertified images at 50 dB are nothing, because the guess has 22 dB",
        of_run(PlannedRun(ended([50.0] * 20, guess=[22.0 + 1e-6 * n for n in range(20)]))),
        (level("broken"), counts(20, 20), says(r"50\.0 dB"), says("without the update: 0 of 20"), says(r"22\.0 dB")),
    ),
    Case(
        "guess above 20 dB for half",
        "the four images that the guess has at 24 dB were rebuilt",
        of_run(PlannedRun(ended([24.0] * 4 + [12.0] * 4, guess=[24.0, 24.1, 24.2, 24.3, 10.0, 10.1, 10.2, 10.3]))),
        (level("open"), counts(0, 8), card("Recognisable", r"\b0 of 8")),
    ),
    Case(
        "baseline as good",
        "the attack took 8 images, which another that reads nothing has as well",
        of_run(PlannedRun([*ended([22.0] * 8), *ended([22.0] * 8, "samples", baseline=True)])),
        (
            level("open"),
            says("samples"),
            says("without the update: 8 of 8", "terminal"),
            never("it takes at least 4"),
        ),
    ),
    Case(
        "baseline alone",
        "8 images leaked to an attack that never reads an update",
        of_run(PlannedRun(ended([30.0] * 8, "samples", baseline=True))),
        (level("not tested"), never("rebuilt")),
    ),
    Case(
        "guess not recorded",
        "that 4 of 4 are above the guess was checked",
        of_run(PlannedRun(ended([25.0] * 4, guess=None))),
        (counts(4, 4), says(r"no guess|guess (was|is|were) not|not held against a guess|without a guess|recorded")),
    ),
    Case(
        "one of twenty",
        "one image of 20 is more than chance",
        of_run(PlannedRun(ended([25.0] + [12.0] * 19))),
        (level("open"), counts(1, 20), counts(1, 20, "terminal")),
    ),
    Case(
        "nothing of one image",
        "no image of this run can be rebuilt, where one was tried",
        of_run(PlannedRun(ended([12.0]))),
        (level("open"), says(r"\b0 of 1\b|the one (observed )?image|1 (observed )?image", "terminal")),
    ),
    Case(
        "three of three",
        "three of three are more than chance (p = 0.05)",
        of_run(PlannedRun(ended([25.0] * 3))),
        (level("open"), counts(3, 3)),
    ),
    Case(
        "two of two at 33 dB",
        "nothing leaked because two images are too few",
        of_run(PlannedRun(ended([33.0, 33.5]))),
        (level("open"), counts(2, 2), counts(2, 2, "terminal"), card("Recognisable", "2 of 2"), never(BY_CHANCE)),
    ),
    Case(
        "four of four",
        "four of four may be chance (p = 0.014)",
        of_run(PlannedRun(ended([25.0] * 4))),
        (level("broken"), counts(4, 4)),
    ),
    Case(
        "five of twenty",
        "five of twenty may be chance (p = 0.024)",
        of_run(PlannedRun(ended([25.0] * 5 + [12.0] * 15))),
        (level("broken"), counts(5, 20)),
    ),
    Case(
        "one image twenty times",
        "20 images were rebuilt: it is one",
        of_run(PlannedRun(ended([35.0] * 20, names=["digits/1"] * 20))),
        (level("open"), says(r"1 different|one (different )?image|1 of 1\b")),
    ),
    Case(
        "one image under four names",
        "four draws: the same bits lie under four names, as the same guess says",
        of_run(PlannedRun(ended([35.0] * 4, names=[f"digits/{n}" for n in range(4)]))),
        (level("open"), says(r"1 different|one (different )?image|1 of 1\b")),
    ),
    Case(
        "four images under one name",
        "one image: four clients gave four images one name, as their guesses say",
        of_run(PlannedRun(ended([35.0] * 4, names=["0.png"] * 4, guess=[10.0, 10.1, 10.2, 10.3]))),
        (level("broken"), counts(4, 4)),
    ),
    Case(
        "a mean beside one image",
        "the recognisable image has 19.4 dB: that is the mean with 19 others",
        of_run(PlannedRun(ended([160.0] + [12.0] * 19, certified=[0]))),
        (level("broken"), never(r"1 of 20 images recognisably[^.]*: rebuild reached 19\.4 dB on average\.")),
    ),
    Case(
        "one of a batch of eight",
        "the update of 8 images was rebuilt",
        of_run(
            PlannedRun(
                [line("rebuild", 0, [image(40.0 if n == 0 else 11.0, f"d/{n}", guess=9 + n / 9) for n in range(8)])]
            )
        ),
        (level("open"), counts(1, 8), card("Recognisable", "1 of 8")),
    ),
    Case(
        "two attacks, half each",
        "no attack rebuilds more than 2 of 4, so half leaked",
        of_run(PlannedRun([*ended([40.0, 41.0, 9.0, 9.5]), *ended([9.0, 9.5, 30.0, 31.0], "search")])),
        (level("broken"), counts(4, 4)),
    ),
)
