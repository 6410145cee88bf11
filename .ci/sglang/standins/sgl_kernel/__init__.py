"""Stands in for SGLang's own kernels, which exist for GPUs and for CPUs with AMX only. It computes nothing.

SGLang's CPU engine imports these names when its modules load; they belong to speculative decoding and to
moving caches about, which a plain server doesn't do. Its layers look for the operator
`torch.ops.sgl_kernel.convert_weight_packed`, don't find it, and take their PyTorch path.
"""

__version__ = "0.0.0"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name}: this machine has a stand-in without kernels")

    return absent
