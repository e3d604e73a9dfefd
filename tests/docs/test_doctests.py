"""The Python examples of the pages, where they show their output."""

import doctest

import pytest

from tests.docs.blocks import blocks

EXAMPLES = [block for block in blocks("python", "pycon") if ">>>" in block.body]


@pytest.mark.parametrize("block", EXAMPLES, ids=[block.name for block in EXAMPLES])
def test_examples_print_what_they_show(block):
    example = doctest.DocTestParser().get_doctest(block.body, {}, block.name, block.path, 0)
    said: list[str] = []
    failed, tried = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    assert tried > 0
    assert failed == 0, "".join(said)
