"""Which tests take long: `python -m tests.support.slow REPORT.xml` writes `tests/slow.txt` anew.

REPORT.xml is what `pytest --junitxml=REPORT.xml` leaves; `make check` leaves these tests out.
"""

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

LIST = Path(__file__).parents[1] / "slow.txt"
SECONDS = 0.4
"""Of a test function, all its parameters together."""


def read() -> frozenset[str]:
    """Node ids of test functions, without parameters."""
    return frozenset(LIST.read_text(encoding="utf-8").split())


def of_report(report: Path) -> list[str]:
    taken: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        name = str(case.get("name")).partition("[")[0].partition("@")[0]  # behind it xdist's group
        taken[f"{str(case.get('classname')).replace('.', '/')}.py::{name}"] += float(case.get("time", 0))
    return sorted(name for name, seconds in taken.items() if seconds >= SECONDS)


if __name__ == "__main__":
    LIST.write_text("\n".join(of_report(Path(sys.argv[1]))) + "\n", encoding="utf-8")
