"""The arrows of import point downwards."""

from importlinter.cli import lint_imports


def test_import_contracts(capsys):
    assert lint_imports(no_cache=True) == 0, capsys.readouterr().out
