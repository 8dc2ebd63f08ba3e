"""Arguments that an operator ignores, taken out of a joint graph, so that nothing is saved for backward in vain.

The gradient of a batch norm in training takes the running statistics and reads the batch's own. Were they saved, the
forward pass would have to keep what it is about to write to the module's buffers, and so compute that somewhere else.
"""

# FX nodes carry values of any type.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import torch
from torch import fx

_BATCH_NORM_BACKWARD = torch.ops.aten.native_batch_norm_backward.default
_RUNNING = (3, 4)
_TRAIN = 7


def drop_unused_arguments(joint: fx.GraphModule) -> None:
    """Give None for the arguments that an operator of `joint` ignores. Changes the graph in place."""
    for node in joint.graph.find_nodes(op="call_function", target=_BATCH_NORM_BACKWARD):
        if len(node.args) > _TRAIN and node.args[_TRAIN] is True:
            for number in _RUNNING:
                node.update_arg(number, None)
