"""What is said of a list that the shell has split."""

import pytest

from experiments.cli.errors import _split_list


@pytest.mark.parametrize(
    ("odd", "arguments", "whole"),
    [
        ("labels]", ["attack=[dlg,", "labels]"], "'attack=[dlg, labels]'"),
        ("a.steps=2]", ["+x.a=[a,", "a.steps=2]"], "'+x.a=[a, a.steps=2]'"),
        ("b.n=2,", ["+x.a=[a,", "b.n=2,", "c]"], "'+x.a=[a, b.n=2, c]'"),
        ("labels]", ["attack=[dlg", "seed=1", "labels]"], None),
        ("labels]", ["attack=[dlg]", "labels]"], None),
    ],
)
def test_a_list_is_put_together_of_its_own_parts(odd: str, arguments: list[str], whole: str | None) -> None:
    said = _split_list(odd, arguments)
    assert said is None if whole is None else said is not None and said.endswith(f"or quote it: {whole}")
