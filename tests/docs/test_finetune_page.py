"""docs/finetune.md: its numbers, its example and what its table says of attacks."""

import re
from collections import Counter

from fedsim.models import Architecture, ModelSpec
from fedsim.settings.composition import finetune_of
from fedsim.settings.options import options
from tests.docs.blocks import ROOT, blocks

PAGE = (ROOT / "docs" / "finetune.md").read_text(encoding="utf-8")
NUMBERS = {
    name: int(found.replace(",", "")) for name, found in re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) \|$", PAGE, re.M)
}


def test_every_recipe_stands_in_the_table_with_its_numbers():
    assert NUMBERS.keys() == set(options("finetune"))
    for name, numbers in NUMBERS.items():
        model = Architecture(ModelSpec("vit_nano_patch2_8", 10), finetune=finetune_of(name)).build()
        assert sum(p.numel() for p in model.parameters() if p.requires_grad) == numbers, name


def test_the_example_runs(capsys):
    (block,) = [block for block in blocks("python") if block.path == "docs/finetune.md"]
    left: dict = {}
    exec(compile(block.body, block.name, "exec"), left)
    factors = Counter(name.rpartition(".")[2] for name in left["seen"].update.tensors)
    assert factors == {"lora_A": 2, "lora_B": 2, "weight": 1, "bias": 1}
    assert capsys.readouterr().out.endswith("pos_embed is not trained (finetune=lora), so it has no gradient\n")
