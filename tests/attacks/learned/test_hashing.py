import torch

from attacks.learned.hashing import UpdateHash


def test_the_same_seed_hashes_alike_and_another_does_not(rng):
    tensors = {"b": torch.randn(40, generator=rng), "a": torch.randn(5, 6, generator=rng)}
    sizes = {name: tensor.numel() for name, tensor in tensors.items()}
    one = UpdateHash(sizes, 16, seed=3)(tensors)
    assert torch.equal(one, UpdateHash(dict(reversed(sizes.items())), 16, seed=3)(dict(reversed(tensors.items()))))
    assert not torch.equal(one, UpdateHash(sizes, 16, seed=4)(tensors))


def test_it_is_a_signed_sum_over_bins_linear_in_the_update(rng):
    update = {"a": torch.randn(30, generator=rng)}
    hashing = UpdateHash({"a": 30}, 7, seed=0)
    columns = torch.stack([hashing({"a": row}) for row in torch.eye(30)], dim=1)
    assert torch.equal(columns.abs().sum(dim=0), torch.ones(30))
    assert set(columns.flatten().tolist()) == {-1.0, 0.0, 1.0}
    torch.testing.assert_close(hashing(update), columns @ update["a"])


def test_inner_products_are_kept_on_average(rng):
    a, b = torch.randn(2, 200, generator=rng)
    b = a + 0.5 * b
    values = []
    for seed in range(300):
        hashing = UpdateHash({"x": 200}, 64, seed)
        values.append(float(hashing({"x": a}) @ hashing({"x": b})))
    truth = float(a @ b)
    spread = float(torch.tensor(values).std()) / 300**0.5
    assert abs(sum(values) / 300 - truth) < 5 * spread


def test_without_bins_the_entries_come_in_the_order_of_their_names():
    tensors = {"b": torch.tensor([3.0]), "a": torch.tensor([[1.0, 2.0]])}
    hashing = UpdateHash({"b": 1, "a": 2}, None, seed=0)
    assert hashing(tensors).tolist() == [1.0, 2.0, 3.0]
    assert hashing.length == 3
