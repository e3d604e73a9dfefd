import json

import torch

from fedsim.bounds.statement import Panel, Proof, Statement, Strip


def test_a_statement_is_json_but_for_its_images():
    strip = Strip("a", (Panel(torch.zeros(3, 2, 2), "own"),))
    proof = Proof(1e-3, 0.02, 1.0, 1, "image")
    found = Statement("theorem", "So it is.", {"mu": 1.0}, ("κ",), (("0.1",),), (strip,), proof)
    assert json.loads(json.dumps(found.to_json())) == {
        "kind": "theorem",
        "sentence": "So it is.",
        "note": "",
        "values": {"mu": 1.0},
        "header": ["κ"],
        "rows": [["0.1"]],
        "proof": {"kappa": 1e-3, "gamma": 0.02, "mu": 1.0, "releases": 1, "unit": "image"},
    }
