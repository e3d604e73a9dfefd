"""The benchmark of labels after Adam: its clients, and a corner of its table."""

import sys

import torch

from experiments.benchmarks import adam_labels


def test_each_kind_of_client_has_the_labels_that_it_is_called_by():
    rng = torch.Generator().manual_seed(0)
    two = adam_labels.drawn("two classes", 200, rng).bincount(minlength=10)
    assert (two > 0).sum() == 2
    alike, own = (adam_labels.drawn(kind, 2000, rng).bincount(minlength=10) for kind in adam_labels.CLIENTS[:2])
    assert float(alike.double().std()) < float(own.double().std())


def test_labels_are_nearer_than_no_gradient_and_the_page_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(adam_labels, "UPDATES", {"8, 1 step": {"images": 8, "batch_size": 8, "local_steps": 1}})
    monkeypatch.setattr(sys, "argv", ["adam_labels", "--updates", "3", "--steps", "0", "--out", str(tmp_path)])
    adam_labels.main()
    page = (tmp_path / "adam_labels.md").read_text(encoding="utf-8")
    assert page.strip() in capsys.readouterr().out
    *_, row = (line for line in page.splitlines() if line.startswith("| 0 |"))
    for cell in row.split("|")[3:6]:
        found, _, guess = cell.replace("(", " ").replace(";", " ").replace(")", " ").split()
        assert float(found) > float(guess)
