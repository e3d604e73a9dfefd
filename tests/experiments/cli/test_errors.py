"""What is said of lists and keys that Hydra cannot take."""

import pytest
from hydra import compose, initialize_config_module

from experiments.cli.errors import ConfigFault, _quote_settings, _split_list, one_line


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


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("attack=labels,dlg", "labels,dlg: write attack=[labels,dlg] for a list, or add -m for a sweep over them"),
        ("defense.half.dtype=1", "It is there with defense=[half]."),
        ("partition.alpha=1", "It is there with partition=dirichlet."),
        ("attack.labels.rul=1", "Did you mean 'attack.labels.rule'?"),
    ],
)
def test_what_would_be_right_is_said(override: str, said: str) -> None:
    with initialize_config_module("conf", version_base=None), pytest.raises(ConfigFault) as caught:
        compose("config", [override])
    assert one_line(caught.value, "config", [override]).endswith(said)


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("+matrix.defenses.x=[half,half.y=3]", "'+matrix.defenses.x=[half,\"half.y=3\"]'"),
        ("+matrix.defenses.x=[a.b=-1,c.d=1e-2]", '\'+matrix.defenses.x=["a.b=-1","c.d=1e-2"]\''),
        ('+matrix.defenses.x=[half,"half.y=3"]', None),
        ("seed=[", None),
    ],
)
def test_a_setting_in_a_list_wants_quotes(override, meant):
    said = _quote_settings(override)
    assert said == (meant and f"{override}: quote each setting in the list: {meant}")
