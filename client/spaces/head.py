"""The space of a model's head, which maps the last hidden state to the vocabulary.

Head tuning (Malladi et al. 2023, appendix E.4): only the projection to the vocabulary is trained.
If this projection is tied to the word embeddings, the embeddings do not change. The head of a
quantized model is trained in the compute type.
"""

from typing import Any

from torch import nn

from samara.client.spaces.parameter_space import ParameterSpace
from samara.shared.errors import ModelError
from samara.shared.model.loading import BaseModel
from samara.shared.model.quantized import Int8Head
from samara.shared.protocol.directions import Distribution
from samara.shared.protocol.replay import Backend


class HeadSpace(ParameterSpace):
    """The space of the head's weights and of its bias, if it has one.

    Args:
        base: model with a head.
        backend: replay backend that computes directions.
        distribution: distribution of the directions.

    Raises:
        ModelError: if the model has no head.
    """

    kind = "head"

    def __init__(
        self, base: BaseModel, backend: Backend, distribution: Distribution = "gaussian"
    ) -> None:
        head = base.network.get_output_embeddings()
        if head is None:
            raise ModelError(
                f"{base.folder}: the model has no head with a vocabulary; choose another space, or "
                "a language model"
            )
        if isinstance(head, Int8Head):
            head = head.dequantized_layer()
            base.network.set_output_embeddings(head)
        name = next(name for name, module in base.network.named_modules() if module is head)
        named = {f"{name}.{own}": tensor for own, tensor in head.named_parameters()}
        super().__init__(base.network, named, backend, distribution)

    def replace_head(self) -> None:
        """Replace the network's head permanently by θ, which is not tied to the word embeddings."""
        network: Any = self._network
        network.config.tie_word_embeddings = False
        for name, tensor in self.named_tensors():
            own, own_name = self._place(name)
            own[own_name] = nn.Parameter(tensor.to(own[own_name].dtype), requires_grad=False)
