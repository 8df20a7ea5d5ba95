"""A GPU that is only pretended, for tests/test_cuda.py: tensors on the CPU are marked as on "cuda:0".

Within `Pretended()` the calls of torch's Python functions and methods are watched. What is made or
sent with device="cuda" is marked, as is whatever comes of marked tensors, and `.device` says so.
Where a marked tensor meets another, `mixed` notes it, but for what CUDA allows: numbers without
dimensions, indices from the CPU, copies. `waits` counts what makes the host wait for a GPU: a copy to
it from memory that is not pinned, a number, list or array from it, a choice by a mask.
What C++ does inside a call is not seen: gradients, kernels.
"""
import traceback
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)
READ = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero", "cpu",
        "masked_select", "unique", "is_nonzero", "equal", "allclose", "__array__", "__contains__"}
COPIES = {"to", "cpu", "cuda", "copy_", "__set__", "tolist", "numpy", "pin_memory", "is_set_to"}


def tensors(x):
    return [leaf for leaf in tree_leaves(x) if isinstance(leaf, torch.Tensor)]


class Pretended(TorchFunctionMode):
    """A mode in which a GPU seems to be there; see above."""

    def __init__(self):
        super().__init__()
        self.marked, self.pinned, self.mixed, self.waits = {}, {}, [], 0

    def __enter__(self):
        self.patches = [mock.patch.object(torch.cuda, name, value) for name, value in dict(
            is_available=lambda: True, set_device=lambda device: None, empty_cache=lambda: None,
            synchronize=lambda *_: None, mem_get_info=lambda *_: (10**9, 10**9),
            get_device_capability=lambda *_: (9, 0), current_device=lambda: 0).items()]
        for patch in self.patches:
            patch.start()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        for patch in self.patches:
            patch.stop()

    def mark(self, x, where=None):
        """The storage of x is known by its address, kept from being used again by a weak reference."""
        where = self.marked if where is None else where
        storage = x.untyped_storage()
        if storage._cdata not in where:
            where[storage._cdata] = StorageWeakRef(storage)
        if len(where) > 20_000:
            for key in [key for key, ref in where.items() if ref.expired()]:
                del where[key]

    def on_gpu(self, x):
        return x.device.type == "cpu" and x.untyped_storage()._cdata in self.marked

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), function.__name__
        with torch._C.DisableTorchFunction():
            given = tensors((args, kwargs))
            here = [self.on_gpu(x) for x in given]
            if name == "__get__" and here and here[0]:
                which = resolve_name(function) or ""
                if which.endswith(("Tensor.device", "Tensor.is_cuda", "Tensor.is_cpu")):
                    return {"device": GPU, "is_cuda": True}.get(which.split(".")[-1], False)
            target, args, kwargs = self.target(name, args, kwargs)
            self.look(name, args, given, here)
            if name == "pin_memory":
                out = args[0].clone()
                self.mark(out, self.pinned)
                return out
            if name == "to" and target == "cuda" and not here[0]:
                asked = kwargs.get("non_blocking") and \
                    args[0].untyped_storage()._cdata in self.pinned
                self.waits += not asked
                kwargs["copy"] = True                       # or it would stay the same memory
            elif name == "to" and target == "cpu" and here[0]:
                self.waits += 1
                kwargs["copy"] = True
            elif target == "cuda" and name in ("tensor", "as_tensor"):
                self.waits += 1
        out = function(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            if target == "cuda" or target is None and any(here) and name not in ("cpu", "numpy"):
                for x in tensors(out):
                    self.mark(x)
            if name == "__set__" and len(given) == 2 and here[1]:       # x.data = y, x.grad = y
                self.mark(given[0])
        return out

    def target(self, name, args, kwargs):
        """-> ("cuda" or "cpu", if the call names a device, else None; its arguments, on the CPU)."""
        found = []

        def on_cpu(x):
            if isinstance(x, torch.device) or isinstance(x, str) and x.split(":")[0] == "cuda":
                found.append(torch.device(x).type)
                return torch.device("cpu")
            return x
        args, kwargs = tree_map(on_cpu, (args, kwargs))
        return (found or [None])[0], args, kwargs

    def look(self, name, args, given, here):
        """Count a wait, note a meeting of two devices."""
        index = name in ("__getitem__", "__setitem__", "index_put", "index_put_")
        if any(here) and name in READ:
            self.waits += 1
        if index and here[0] and any(x.dtype == torch.bool and x.dim() for x in tensors(args[1])):
            self.waits += 1                                  # a mask's size is not known
        if index and here[0] and any(isinstance(i, list) for i in (
                args[1] if isinstance(args[1], tuple) else (args[1],))):
            self.waits += 1                                  # a list becomes a tensor, sent there
        with_dims = [on for x, on in zip(given, here) if x.dim()]
        free = name in COPIES or index and here[0] and not any(
            x.dim() and not self.on_gpu(x) for x in tensors(args[2:]))
        if any(with_dims) and not all(with_dims) and not free:
            where = [line for line in traceback.extract_stack()
                     if "site-packages" not in line.filename and "pretended" not in line.filename]
            self.mixed.append(f"{name} at {where[-1].filename}:{where[-1].lineno}")
