"""Equal images are found by their numbers, within a client and over clients."""

import torch

from fedsim.data.copies import most_copies, most_holders
from fedsim.data.tensors import TensorImages


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
