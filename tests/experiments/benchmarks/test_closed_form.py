"""The benchmark of closed forms: every repeat has the client's first update."""

import torch

from clients.app import ClientRuntime
from experiments.benchmarks import closed_form


def test_every_repeat_starts_from_the_same_model(monkeypatch, capsys):
    shared, share = [], ClientRuntime.share

    def kept(*args, **kwargs):
        shared.append(share(*args, **kwargs))
        return shared[-1]

    monkeypatch.setattr(ClientRuntime, "share", kept)
    monkeypatch.setattr(closed_form, "REPEATS", 1)
    settings = ["data=digits", "model=vit_nano", "attack=[patch_gradient]", "client.share=delta", "audit.batch_size=1"]
    monkeypatch.setattr("sys.argv", ["closed_form", *settings])
    threads = torch.get_num_threads()
    try:
        closed_form.main()
    finally:
        torch.set_num_threads(threads)
    first, second = (one.update.tensors for one in shared)
    assert any(tensor.any() for tensor in first.values())
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert "patch_gradient / client's step" in capsys.readouterr().out
