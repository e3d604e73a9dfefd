"""Comparisons in which a defense looks better, or another run, than it is."""

from tests.verdicts.case import Case, PlannedRun, of_runs
from tests.verdicts.expectations import counts, level, level_of, never, row, says
from tests.verdicts.lines import ended, failed, labels, refused

NOISE = "{gradient_noise: {relative_norm: 0.001}}"
JIGSAW = "{mjp_jp: {ratio: 0.9}, half: {}}"
MIRROR = "{ats: {policies: [], flip: true}, half: {}}"
EXACT = PlannedRun(ended([160.0] * 8, certified=range(8)))

CASES = (
    Case(
        "noise at 33 dB",
        "noise helps: 2 of 2 images are nearly identical to the client's own",
        of_runs(none=PlannedRun(ended([160.0, 161.0])), noise=PlannedRun(ended([33.0, 34.0]), NOISE)),
        (level("open"), counts(2, 2)),
    ),
    Case(
        "noise at 33 dB on eight",
        "8 of 8 nearly identical images are less than 8 of 8 exact ones, so it helps",
        of_runs(none=EXACT, noise=PlannedRun(ended([33.0] * 8), NOISE)),
        (level("broken"), counts(8, 8)),
    ),
    Case(
        "one of twenty, none of one",
        "nothing is recognisable under the defense: one image was tried",
        of_runs(none=PlannedRun(ended([25.0] + [12.0] * 19)), noise=PlannedRun(ended([12.0]), NOISE)),
        (level("open"), says(r"\b0 of 1\b|the one (observed )?image|1 observed image"), counts(1, 20)),
    ),
    Case(
        "jigsaw and half precision against none",
        "the jigsaw stops the attack: every image came out shuffled, at 45 dB",
        of_runs(none=EXACT, jigsaw=PlannedRun(ended([45.0] * 8, own=9.0), JIGSAW)),
        (level("broken"), counts(8, 8), says("as the model saw")),
    ),
    Case(
        "mirroring against none",
        "half as many leak: the other half came out mirrored",
        of_runs(none=EXACT, mirrored=PlannedRun(ended([45.0] * 8, own=[45.0, 12.0] * 4), MIRROR)),
        (level("broken"), says("as the model saw")),
    ),
    Case(
        "half precision against none",
        "57 dB leaks less than 160 dB",
        of_runs(none=EXACT, half=PlannedRun(ended([57.0] * 8), "{half: {}}")),
        (level("broken"), counts(8, 8), never("leaks less")),
    ),
    Case(
        "guess returned under the defense",
        "the defense leaves 8 of 8 recognisable: the attack returned the mean image",
        of_runs(none=EXACT, noise=PlannedRun(ended([24.2] * 8, guess=[24.2 + 1e-6 * n for n in range(8)]), NOISE)),
        (
            level("open"),
            counts(0, 8),
            never("it takes at least 4"),
            row("gradient_noise", "Recognisable", r"^0 %|^0 of 8"),
        ),
    ),
    Case(
        "one certified of twenty under the defense",
        "1 of 20 is as good as nothing: it is certified",
        of_runs(none=EXACT, noise=PlannedRun(ended([160.0] + [12.0] * 19, certified=[0]), NOISE)),
        (level("broken"), counts(1, 20)),
    ),
    Case(
        "the undefended run is the weaker one",
        "nothing is to be feared, as without a defense nothing leaks",
        of_runs(none=PlannedRun(ended([12.0] * 8)), noise=PlannedRun(ended([30.0] * 8), NOISE)),
        (level("broken"), counts(8, 8), never("other attacks")),
    ),
    Case(
        "other attacks on either side",
        "the defense stops what broke the model: that was not tried on it",
        of_runs(none=EXACT, noise=PlannedRun(refused(8, "other"), NOISE)),
        (level("not tested"), says("rebuild"), says("not tried|never ran|other attacks")),
    ),
    Case(
        "another, weaker attack under the defense",
        "0 of 8 against 8 of 8 is the defense's doing: another attack was made",
        of_runs(none=EXACT, noise=PlannedRun(ended([12.0] * 8, "other"), NOISE)),
        (level("open"), says(r"not tried.*rebuild"), counts(0, 8)),
    ),
    Case(
        "all refused under the defense",
        "nothing is recognisable under it: nothing was tried",
        of_runs(none=EXACT, noise=PlannedRun(refused(8), NOISE)),
        (level("not tested"), says("refused"), never("0 of 8 .*recognis")),
    ),
    Case(
        "failed under the defense",
        "nothing is recognisable under it: the attack raised",
        of_runs(none=EXACT, noise=PlannedRun(failed(8), NOISE)),
        (level("not tested"), says("fail")),
    ),
    Case(
        "failed without the defense",
        "the defense lets 8 images out that were private without it",
        of_runs(none=PlannedRun(failed(8)), noise=PlannedRun(ended([30.0] * 8), NOISE)),
        (level("broken"), says("failed or never ran without"), never("undefended 0 of 8")),
    ),
    Case(
        "half failed under the defense",
        "0 of 8 leak: four were never finished",
        of_runs(none=EXACT, noise=PlannedRun([*ended([12.0] * 4), *failed(4, first=4)], NOISE)),
        (level("open"), says("failed"), never("0 of (the )?8 observed")),
    ),
    Case(
        "a baseline under the defense",
        "8 of 8 leak: to what never reads an update",
        of_runs(none=EXACT, noise=PlannedRun(ended([30.0] * 8, "samples", baseline=True), NOISE)),
        (level("not tested"),),
    ),
    Case(
        "labels alone under the defense",
        "no image leaks: none was attacked",
        of_runs(none=EXACT, noise=PlannedRun(labels(8), NOISE)),
        (level("not tested"), says("label")),
    ),
    Case(
        "no undefended run",
        "the defense is what kept 8 images",
        of_runs(noise=PlannedRun(ended([12.0] * 8), NOISE), half=PlannedRun(ended([160.0] * 8), "{half: {}}")),
        (level_of("gradient_noise", "open"), level_of("half", "broken"), says("no undefended run")),
    ),
    Case(
        "nothing leaks on either side",
        "the defense stops the attack: there was nothing to stop",
        of_runs(none=PlannedRun(ended([12.0] * 8)), noise=PlannedRun(ended([11.0] * 8), NOISE)),
        (level("open"), counts(0, 8), says("without (the defense|it|a defense)")),
    ),
    Case(
        "two seeds, the same two images",
        "four of four: two images under two seeds",
        of_runs(
            none0=EXACT,
            none1=PlannedRun(EXACT.lines, seed=1),
            noise0=PlannedRun(ended([33.0, 34.0]), NOISE),
            noise1=PlannedRun(ended([33.5, 34.5], guess=[11.0, 11.1]), NOISE, seed=1),
        ),
        (level("open"), says(r"2 different|\b2 of (the )?2\b")),
    ),
    Case(
        "two seeds, four images",
        "two seeds of two images each are not four",
        of_runs(
            none0=EXACT,
            none1=PlannedRun(EXACT.lines, seed=1),
            noise0=PlannedRun(ended([33.0, 34.0]), NOISE),
            noise1=PlannedRun(ended([33.5, 34.5], first=2), NOISE, seed=1),
        ),
        (level("broken"), counts(4, 4)),
    ),
    Case(
        "accuracy of four test images",
        "noise costs 25 points: one of four images",
        of_runs(
            none=PlannedRun(EXACT.lines, test_images=4),
            noise=PlannedRun(ended([12.0] * 8), NOISE, "", "federated", "ended", 0, (0.1, 0.5), 4),
        ),
        (says(r"± [3-9]\d\.\d points"), says(r"\b4 test images")),
    ),
    Case(
        "accuracy of unknown test images",
        "a difference of 25 points is beyond chance",
        of_runs(
            none=PlannedRun(EXACT.lines, state="old"),
            noise=PlannedRun(ended([12.0] * 8), NOISE, state="old", accuracies=(0.1, 0.5)),
        ),
        (never(r"±"), says("not (known|recorded|stated)|unknown")),
    ),
    Case(
        "accuracy missing",
        "the defense costs nothing",
        of_runs(none=EXACT, noise=PlannedRun(ended([12.0] * 8), NOISE, accuracies=())),
        (level("open"), never(r"points|accuracy \d")),
    ),
    Case(
        "an unfinished defended run",
        "the defense was judged",
        of_runs(none=EXACT, noise=PlannedRun(ended([12.0]), NOISE, state="unfinished")),
        (says("left out because unfinished: noise", "text"), never("gradient_noise")),
    ),
    Case(
        "what recognisable means",
        "20 dB are enough, whatever the mean image has",
        of_runs(none=EXACT, noise=PlannedRun(ended([12.0] * 8), NOISE)),
        (says(r"recognisable[^.]*\b20 dB[^.]*guess|guess[^.]*recognisable[^.]*\b20 dB", "text"),),
    ),
    Case(
        "guess not recorded under the defense",
        "4 of 4 at 24 dB were held against the mean image",
        of_runs(none=EXACT, noise=PlannedRun(ended([24.0] * 4, guess=None), NOISE)),
        (says("not held against a guess|guess.*not recorded|recorded none|no guess"),),
    ),
)
