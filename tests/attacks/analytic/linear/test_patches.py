import torch
import torch.nn.functional as F

from attacks.analytic.linear.patches import unpatchify


def test_inverts_the_order_of_a_convolutions_weight():
    picture = torch.randn(1, 3, 6, 8)
    weight = torch.randn(5, 3, 2, 4)
    projected = F.conv2d(picture, weight, stride=(2, 4))
    columns = F.unfold(picture, kernel_size=(2, 4), stride=(2, 4))[0].T
    torch.testing.assert_close(columns @ weight.flatten(1).T, projected.flatten(2)[0].T)
    torch.testing.assert_close(unpatchify(columns, (3, 2), (2, 4)), picture)


def test_one_channel():
    picture = torch.randn(1, 1, 4, 4)
    columns = F.unfold(picture, kernel_size=2, stride=2)[0].T
    torch.testing.assert_close(unpatchify(columns, (2, 2), (2, 2)), picture)
