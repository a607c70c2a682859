"""The weights of a network's linear layers, which LSP-Offload trains."""

from torch import nn

from samara.shared.errors import ModelError
from samara.shared.model.layer_selection import is_linear


def linear_weights(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weight matrices of all linear layers by name.

    A weight shared with an embedding, such as the weight of a tied head, counts as an embedding. As
    in the paper, embeddings, norms and biases are not trained (LSP-Offload, section 4.1).

    Raises:
        ModelError: if the network has no such weight.
    """
    tables = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
    linear = {
        id(module.weight)
        for module in network.modules()
        if is_linear(module) and isinstance(module.weight, nn.Parameter)
    }
    wanted = linear - tables
    weights = {name: p for name, p in network.named_parameters() if id(p) in wanted}
    if not weights:
        raise ModelError(
            "the model has no linear layers with trainable weights; choose another optimizer"
        )
    return weights
