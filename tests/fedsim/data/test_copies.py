"""Equal images are found by their numbers, within a client and over clients."""

import torch

from fedsim.data.copies import contents, most_copies, most_holders, readable_contents
from fedsim.data.tensors import TensorImages
from fedsim.errors import ConfigError


def images(*values):
    """An image of one colour for each."""
    return TensorImages(torch.tensor(values).view(-1, 1, 1, 1).expand(-1, 3, 2, 2), torch.zeros(len(values)).long())


def test_how_often_one_stands_among_a_client_s():
    assert most_copies(images(0.1, 0.2, 0.1, 0.3, 0.1)) == 3
    assert most_copies(images(*(k / 200 for k in range(150)), 0.0)) == 2, "also where they are read in parts"
    assert (most_copies(images(0.1, 0.2)), most_copies(images())) == (1, 1)


def test_how_many_clients_hold_one():
    assert most_holders([images(0.1, 0.1, 0.2), images(0.2, 0.3), images(0.2, 0.1)]) == 3
    assert (most_holders([images(0.1, 0.1), images(0.2)]), most_holders([])) == (1, 1)


class Broken(TensorImages):
    """White cannot be read."""

    def images(self, indices):
        found = super().images(indices)
        if bool((found == 1).any()):
            raise ConfigError("data", "white", "readable")
        return found


def test_what_cannot_be_read_is_left_out_of_the_others():
    colours = [k / 200 for k in range(150)]
    broken = images(*colours[:70], 1.0, *colours[70:], 1.0)
    broken.__class__ = Broken
    assert readable_contents(broken) == list(contents(images(*colours)))
