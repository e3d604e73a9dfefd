"""How a page is made from its template."""

import base64
import functools
import hashlib
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import fedsim
from fedsim.bounds.robustness_wording import probability
from fedsim.report import wording
from fedsim.report.matrix import wording as matrix_wording
from fedsim.report.run.summary import THRESHOLDS
from fedsim.report.thresholds import EXACT, GUESS_MARGIN, RECOGNISABLE


def filled(template: str, **given: Any) -> str:
    """The text of a template with these values."""
    return environment().get_template(template).render(**given)


@functools.cache
def environment() -> Environment:
    """Compiled once: a template takes longer to compile than a page to fill in."""
    made = Environment(
        loader=PackageLoader("fedsim.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("percent", "graded", "decimal", "duration", "count", "likeness", "breakable"):
        made.filters[name] = getattr(wording, name)
    for name in ("cell_level", "cell_text", "cell_story", "counts_text", "leakage_text", "strongest_level"):
        made.filters[name] = getattr(matrix_wording, name)
    made.filters["probability"] = probability
    made.globals |= {
        "version": fedsim.__version__,
        "exact": EXACT,
        "recognisable": RECOGNISABLE,
        "margin": GUESS_MARGIN,
        "thresholds": THRESHOLDS,
        "seen_hint": wording.SEEN,
        "private_hint": wording.PRIVATE,
        "script": _script(made),
    }
    return made


def _script(made: Environment) -> tuple[Markup, str]:
    """What the page can do, and its hash: the page's policy runs this script and no other."""
    source = made.get_template("page.js.j2").render()
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode("ascii")
    return Markup(source), digest  # noqa: S704 - a file of this package, with nothing filled in
