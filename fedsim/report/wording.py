"""Numbers as people read them."""

from markupsafe import Markup, escape

from fedsim.report.thresholds import GUESS_MARGIN, INDISTINGUISHABLE, RECOGNISABLE

DASH = "–"

TRACES = 15.0
"""dB from which an eye may find shapes or colours."""

NEARLY_IDENTICAL = 30.0

SEEN = "against what the model saw"
PRIVATE = "against the client's own image, before anything changed it: what there is to protect"


def percent(share: float | None) -> str:
    """A share with one decimal; never rounded up to everything or down to nothing."""
    if share is None:
        return DASH
    if share in (0.0, 1.0):
        return f"{share:.0%}".replace("%", " %")
    return f"{min(max(100 * share, 0.1), 99.9):.1f} %"


def accuracy(share: float | None, error: float | None) -> str:
    """`90.8 % ± 1.5`, with its standard error where that is known."""
    return percent(share) + ("" if share is None or error is None else f" ± {100 * error:.1f}")


def decibels(value: float | None) -> str:
    if value is None:
        return DASH
    return "exact" if value >= 299.95 else f"{value:.1f} dB"


def below(value: float | None, limit: float) -> str:
    """Decibels as `decibels` has them, never rounded up to the limit that the value stays below."""
    close = value is not None and value < limit <= round(value, 1)
    return f"{limit - 0.1:.1f} dB" if close else decibels(value)


def graded(value: float | None) -> str:
    """Decibels as `decibels` has them, never rounded up to where better words of `likeness` begin."""
    for least in (TRACES, RECOGNISABLE, NEARLY_IDENTICAL, INDISTINGUISHABLE):
        if value is not None and value < least:
            return below(value, least)
    return decibels(value)


def decimal(value: float | None) -> str:
    """Three decimals, or the power of ten where they would all be zeros."""
    if value is None:
        return DASH
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.001 else f"{value:.0e}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    if seconds < 0.001:
        return "< 1 ms"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 picture`, `1,200 pictures`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def likeness(psnr: float | None, guess: float | None = None) -> str:
    """What a PSNR means to an eye, in a few words; with hyphens for spaces they name a style.

    Args:
        guess: what a guess without any gradient reaches on the same picture.
    """
    if psnr is None:
        return "not measured"
    if psnr >= TRACES and guess is not None and psnr < guess + GUESS_MARGIN:
        return "no better than a guess"
    for least, words in (
        (INDISTINGUISHABLE, "indistinguishable"),
        (NEARLY_IDENTICAL, "nearly identical"),
        (RECOGNISABLE, "recognisable"),
    ):
        if psnr >= least:
            return words
    return "traces" if psnr >= TRACES else "not recognisable"


def breakable(name: str) -> Markup:
    """Escaped, and a line may end behind each underscore."""
    return Markup("_<wbr>").join(escape(part) for part in name.split("_"))


def listed(words: list[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""
