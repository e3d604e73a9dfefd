"""The stand-in refuses what CUDA refuses, lets through what it lets through, and computes what the CPU computes."""

import re

import pytest
import torch
from torch.func import grad, jvp, vmap
from torch.nn import functional as F

SAME = "Expected all tensors to be on the same device"
CPU = torch.arange(12.0).view(3, 4)
ROWS = torch.tensor([0, 2])

MIXED = {
    "addition": lambda x: x + CPU,
    "a scalar of the device beside a tensor of the CPU": lambda x: CPU + x.sum(),
    "in place": lambda x: CPU.clone().add_(x),
    "a product": lambda x: x @ CPU.T,
    "cat": lambda x: torch.cat([x, CPU]),
    "stack of scalars": lambda x: torch.stack([x.sum(), torch.tensor(1.0)]),
    "labels": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2])),
    "index_select": lambda x: x.index_select(0, ROWS),
    "gather": lambda x: x.gather(0, torch.zeros(1, 4, dtype=torch.int64)),
    "a mask": lambda x: x.masked_fill(CPU > 1, 0.0),
    "a condition": lambda x: torch.where(CPU > 1, x, x),
    "comparison": lambda x: torch.equal(x, CPU),
    "a system": lambda x: torch.linalg.lstsq(x, CPU),
    "a layer": lambda x: F.linear(x, CPU),
    "a convolution": lambda x: F.conv2d(x[None, None], CPU[None, None]),
    "an embedding": lambda x: F.embedding(ROWS, x),
    "under vmap": lambda x: vmap(lambda row: row + CPU[0])(x),
    "under grad": lambda x: grad(lambda y: (y * CPU).sum())(x),
    "lists of tensors": lambda x: torch._foreach_add([x], [CPU]),
}
ALLOWED = {
    "a scalar of the CPU": lambda x: x * torch.tensor(2.0) - torch.tensor(1.0),
    "indices of the CPU": lambda x: x[ROWS],
    "a mask of the CPU as index": lambda x: x[torch.tensor([True, False, True])],
    "copy_": lambda x: x.clone().copy_(CPU),
    "assignment": lambda x: torch.zeros_like(x).index_put_((ROWS,), x[ROWS]),
    "numbers": lambda x: 2 * x.remainder(5) // 3,
    "a view": lambda x: x.T[1:].reshape(-1)[::2],
    "Fourier's transform": lambda x: torch.fft.ifft2(torch.fft.fft2(x).conj()).real,
    "a result of another shape": lambda x: torch.cat([x, x]).unique(),
    "a system": lambda x: torch.linalg.lstsq(x, x)[0],
    "forward mode": lambda x: jvp(torch.sin, (x,), (x,))[1],
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "a convolution": lambda x: F.conv2d(x[None, None], x[None, None, :2, :2]),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices_are_refused(strict, name):
    with pytest.raises(RuntimeError, match=SAME):
        MIXED[name](CPU.to(strict))


def test_a_solver_that_cuda_lacks_is_refused(strict):
    with pytest.raises(RuntimeError, match=r"`driver` should be one of \(gels\)"):
        torch.linalg.lstsq(CPU.to(strict), CPU.to(strict), driver="gelsd")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")
@pytest.mark.parametrize("name", ALLOWED)
def test_the_rest_is_computed_as_on_the_cpu(strict, name):
    found = ALLOWED[name](CPU.to(strict))
    assert found.device.type == "strict"
    torch.testing.assert_close(found.cpu(), ALLOWED[name](CPU))


def test_tensors_move_and_are_made_there(strict):
    there = CPU.to(strict)
    assert [t.device.type for t in (there, there.cpu(), torch.zeros(2, device=strict))] == ["strict", "cpu", "strict"]
    there.mul_(2.0)
    assert torch.equal(there.cpu(), 2 * CPU), "a copy of its own"
    assert there.sum().item() == 132.0
    assert there[0].tolist() == [0.0, 2.0, 4.0, 6.0]


def test_a_generator_of_the_cpu_draws_on_the_cpu_alone(strict):
    rng = torch.Generator().manual_seed(0)
    for draw in (torch.randn, torch.rand):
        with pytest.raises(RuntimeError, match="Expected a 'strict' device type for generator but found 'cpu'"):
            draw(3, generator=rng, device=strict)
    assert torch.randn(3, generator=rng).to(strict).device.type == "strict"


def test_it_is_no_array_of_numpy(strict):
    with pytest.raises(TypeError, match=re.escape("Use Tensor.cpu() to copy the tensor to host memory first")):
        CPU.to(strict).numpy()


def test_a_model_is_trained_to_the_same_weights(strict):
    def trained(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)
        )
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(CPU.to(device)), torch.tensor([0, 1, 2], device=device)).backward()
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    for here, there in zip(trained("cpu"), trained(strict), strict=True):
        torch.testing.assert_close(here, there)


def test_a_process_that_knows_the_device_can_still_fork_its_generators(strict):
    before = torch.get_rng_state()
    with torch.random.fork_rng():
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
