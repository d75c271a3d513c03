"""What the double does inside a call stands for kernels: nothing that watches torch's operators sees it."""

from __future__ import annotations

from functools import wraps

import torch
from torch.utils._python_dispatch import _disable_current_modes


def kernel(call):
    @wraps(call)
    def run(*args, **given):
        with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
            return call(*args, **given)

    return run
