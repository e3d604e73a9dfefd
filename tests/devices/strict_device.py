"""A stand-in for a GPU: a device of its own name whose kernels refuse what CUDA's refuse, and then run on the CPU.

It is torch's spare backend (PrivateUse1): dispatch, autograd and `torch.func` treat it as they treat CUDA, so torch
itself refuses most mixed devices, and the rest is refused here; a scalar of the CPU is let through everywhere. A tensor
of it and its twin on the CPU share their memory: DLPack makes one of the other, with the device written over. It shows
where tensors are, not what a GPU computes.
"""

import contextlib
import ctypes
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration

NAME = "strict"
DL_CPU, DL_EXTENSION = 1, 12
"""DLPack's numbers of the CPU and of the spare backend."""
VIEWS = ("as_strided", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex")
"""Another tensor on the same memory: the CPU's kernels take tensors of any device."""
MOVES = ("copy_", "_copy_from", "_copy_from_and_resize")
WHOLE = (*MOVES, "convolution", "convolution_backward")
"""What torch would otherwise take apart into kernels that a spare backend lacks."""
CPU_INDICES = ("index", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put")
"""Their indices may be on the CPU."""
counted = {"kernels": 0}
"""That ran on the device in this process."""
Argument = tuple[torch._C.Argument, Any]
"""As the operator declares it, and its value."""


@contextlib.contextmanager
def strict_device() -> Iterator[torch.device]:
    """The device; in the block backward passes stay in this thread: torch starts none for a device that comes late."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _backend()
    with torch.autograd.set_multithreading_enabled(False):
        yield torch.device(NAME)


@functools.cache
def _backend() -> tuple[torch.library.Library, ...]:
    """Registered once for a process, as long as the libraries live."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    module = getattr(torch, NAME)
    # The device draws nothing, but `torch.random.fork_rng` asks each accelerator for its generators.
    module.get_rng_state = lambda device=None: torch.empty(0, dtype=torch.uint8)
    module.set_rng_state = lambda state, device=None: None
    rest, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    rest.fallback(_kernel, "PrivateUse1")
    for names, kernel in ((VIEWS, _on_same_memory), (WHOLE, _kernel)):
        for name in names:
            operator = getattr(torch.ops.aten, name).default
            aten.impl(operator, functools.partial(kernel, operator), "PrivateUse1")
    aten.impl("_efficientzerotensor", lambda size, **kwargs: torch.zeros(size, **kwargs), "PrivateUse1")
    aten.impl("_fused_sdp_choice", lambda *_, **__: 0, "PrivateUse1")  # plain attention
    return rest, aten


def _kernel(operator: Any, *args: Any, **kwargs: Any) -> Any:
    given = list(_given(operator, args, kwargs))
    tensors = [(argument, one) for argument, value in given for one in _tensors(value)]
    device = kwargs.get("device")
    ours = device.type == NAME if device is not None else any(one.device.type == NAME for _, one in tensors)
    _refuse_mixed(operator, tensors)
    if ours and any(argument.name == "driver" and value not in (None, "gels") for argument, value in given):
        raise RuntimeError(f"{operator}: parameter `driver` should be one of (gels)")
    args = tuple(_as_declared(argument, value, tensors) for argument, value in given[: len(args)])
    if ours and any(isinstance(value, torch.Generator) and value.device.type == "cpu" for _, value in given):
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu', for {operator}")
    counted["kernels"] += ours
    results = {id(one) for argument, one in tensors if argument.is_out and not one.numel()}
    twins: dict[int, tuple[Tensor, Tensor]] = {}

    def down(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, Tensor) or value.device.type != NAME:
            return value
        twin = torch.empty(0, dtype=value.dtype) if id(value) in results else _twin(value, DL_CPU)
        twins[id(twin)] = twin, value
        return twin

    def up(value: Any) -> Any:
        if not isinstance(value, Tensor) or not ours:
            return value
        if id(value) in twins:
            return _filled(twins[id(value)][1], value)
        memory = {twin.untyped_storage().data_ptr() for twin, _ in twins.values()}
        return _twin(value.clone() if value.untyped_storage().data_ptr() in memory else value, DL_EXTENSION)

    named = {name: _mapped(value, down) for name, value in kwargs.items() if name != "pin_memory"}
    return _mapped(operator(*_mapped(args, down), **named), up)


def _refuse_mixed(operator: Any, tensors: list[tuple[torch._C.Argument, Tensor]]) -> None:
    """Raises RuntimeError for arguments of two devices, less what CUDA's kernels take from the CPU."""
    name = operator._schema.name.removeprefix("aten::")
    for argument, one in tensors if name not in MOVES else ():
        scalar = one.dim() == 0 and not (argument.alias_info is not None and argument.alias_info.is_write)
        index = argument.name == "indices" and name in CPU_INDICES and tensors[0][1].device.type == NAME
        if one.device.type != NAME and not scalar and not index:
            devices = ", ".join(f"{other.name} on {tensor.device}" for other, tensor in tensors)
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {argument.name} of {operator} is not ({devices})"
            )


def _as_declared(argument: torch._C.Argument, value: Any, tensors: list[tuple[torch._C.Argument, Tensor]]) -> Any:
    """Numbers that torch made tensors of come as numbers."""
    if str(argument.type) == "Tensor" and isinstance(value, int | float | complex):
        return torch.tensor(value, dtype=torch.result_type(tensors[0][1], value))
    return value


def _given(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Argument]:
    schema = operator._schema.arguments
    yield from zip(schema, args, strict=False)
    yield from ((argument, kwargs[argument.name]) for argument in schema if argument.name in kwargs)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_mapped(one, change) for one in value)
    return change(value)


class _Pack(ctypes.Structure):
    """The beginning of DLPack's DLManagedTensor."""

    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _twin(tensor: Tensor, device: int) -> Tensor:
    """The same memory as a tensor of the other device."""
    for bit, flip in ((tensor.is_conj(), torch.conj), (tensor.is_neg(), torch._neg_view)):
        if bit:  # not yet carried out, and DLPack has no word for it
            return flip(_twin(flip(tensor), device))
    capsule = torch._C._to_dlpack(tensor)
    _Pack.from_address(_pointer(capsule, b"dltensor")).device_type = device
    return torch._C._from_dlpack(capsule)


def _filled(ours: Tensor, twin: Tensor) -> Tensor:
    """What a kernel was given empty to write its result into."""
    if ours.shape != twin.shape:
        made = _twin(twin, DL_EXTENSION)
        where = made.untyped_storage(), made.storage_offset(), made.shape, made.stride()
        _on_same_memory(torch.ops.aten.set_.source_Storage_storage_offset, ours, *where)
    return ours


def _on_same_memory(operator: Any, *args: Any, **kwargs: Any) -> Any:
    return operator.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
