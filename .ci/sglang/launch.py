"""Starts the SGLang server as `python -m sglang.launch_server` does, where torchvision has no operators.

The torchvision of the package index is built for CUDA, and its compiled half doesn't load beside a PyTorch
for CPUs. Its Python half then fails at import, as it describes two operators that were never declared. A
text model calls neither, so declaring them is enough. The server's other processes import this file too,
as their main module, and so get the declaration.
"""

import sys

import torch

OPERATORS = torch.library.Library("torchvision", "FRAGMENT")  # declared for as long as this object lives
for _name in ("nms", "qnms"):
    OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))
