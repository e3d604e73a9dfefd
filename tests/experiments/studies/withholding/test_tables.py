"""What the tables say of a set: no less than a guess, and which attacks the answer rests on."""

import pytest

from experiments.studies.withholding.search import LEVELS, Leak, SmallestSets, own_attacks
from experiments.studies.withholding.study import inapplicable
from experiments.studies.withholding.tables import WithheldLine, never_applied, write_chart, write_tables

GUESSES = (10.0, 12.0)
REFUSED = "needs another model"


def line(*leaks, withheld=(), smallest=False):
    return WithheldLine("stock", "published", frozenset(withheld), leaks, GUESSES, smallest, smallest, 0.1)


def test_a_picture_is_known_as_well_as_a_guess_knows_it():
    poor = line(Leak("a", (7.3, 20.0), 0, ""), Leak("b", (None, None), 0, REFUSED))
    assert poor.best == [10.0, 20.0]
    assert poor.strongest == "a"
    assert line(Leak("a", (7.3, 9.0), 0, ""), Leak("b", (None, None), 0, REFUSED)).strongest == "guess"
    assert line(Leak("a", (7.3, 9.0), 0, ""), Leak("b", (None, 13.0), 0, "")).strongest == "b"
    assert line(Leak("b", (None, None), 0, REFUSED)).best == list(GUESSES)


def test_attacks_that_never_ran_are_named_with_every_reason():
    lines = [
        line(Leak("a", (9.0, None), 0, ""), Leak("b", (None, None), 0, "first"), Leak("c", (None, None), 0, "")),
        line(Leak("a", (None, None), 0, "x"), Leak("b", (None, None), 0, "second"), Leak("c", (None, None), 0, "")),
    ]
    assert never_applied(lines) == {"b": "first; or second", "c": "it returned no picture"}


def test_each_level_has_attacks_of_its_own():
    own = {level: own_attacks(level) for level in LEVELS}
    assert own["linear"] == ("qkv_row_space",)
    assert own["search"] == ("later_row_spaces",)
    assert sorted(attack for attacks in own.values() for attack in attacks) == sorted(LEVELS["search"])


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_whose_own_attacks_apply_to_nothing_is_none(level):
    own = own_attacks(level)
    others = [Leak(attack, (9.0, 9.0), 0, "") for attack in LEVELS[level] if attack not in own]
    silent = [Leak(attack, (None, None), 0, REFUSED) for attack in own]
    assert inapplicable(level, [line(*others, *silent)]).count(REFUSED) == len(own)
    assert inapplicable(level, [line(*others, *silent), line(*others, Leak(own[0], (None, 9.0), 0, ""))]) == ""


def test_the_verdict_names_who_refused_and_levels_that_were_left_out(tmp_path):
    some = frozenset({"head"})
    lines = [
        line(Leak("a", (60.0, 60.0), 2, ""), Leak("b", (60.0, 60.0), 0, ""), Leak("c", (None, None), 0, REFUSED)),
        line(
            Leak("a", (None, None), 0, "head is withheld"),
            Leak("b", (8.0, 9.0), 0, ""),
            Leak("c", (None, None), 0, REFUSED),
            withheld=some,
            smallest=True,
        ),
    ]
    found = {("stock", "published"): SmallestSets({"a": [some]}, [some], [some])}
    write_tables(
        tmp_path, lines, found, {("april", "search"): "it is not modelled"}, [], [{"by": "commit a on 2 CPU cores"}]
    )
    told = (tmp_path / "withholding.md").read_text()
    assert "- c applied to nothing, and says nothing here: needs another model" in told
    assert "Smallest sets that stop all others: head." in told
    assert "- head: b reaches 8.5 dB; refused by a (head is withheld); a guess 11.0 dB" in told
    assert "## Left out" in told
    assert "- april, search: it is not modelled" in told


def test_without_a_line_there_is_no_chart(tmp_path):
    write_chart(tmp_path, [], [])
    assert not list(tmp_path.iterdir())
