"""Matrix products are the same with every library."""

import pytest
import torch
from torch import nn

from samara.shared.model import products
from samara.shared.model.products import linear, use_faster_products


@pytest.mark.parametrize("rows", [1, 15, 16, 200])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("onednn", [True, False])
def test_products_are_those_of_torch(
    rows: int, with_bias: bool, onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        products,
        "_ONEDNN",
        onednn and torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    )
    monkeypatch.setattr(products, "_FEWEST_MULTIPLICATIONS", 1)
    torch.manual_seed(0)
    x, weight = torch.randn(2, 3, 24, rows).transpose(2, 3), torch.randn(40, 24)
    bias = torch.randn(40) if with_bias else None
    for kind in (torch.float32, torch.bfloat16):
        own = (x.to(kind), weight.to(kind), None if bias is None else bias.to(kind))
        with torch.inference_mode():
            found = linear(*own)
        expected = nn.functional.linear(*own)
        assert found.dtype == kind
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_small_products_stay_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """For them oneDNN's preparation takes longer than the product."""
    monkeypatch.setattr(products, "_ONEDNN", True)
    called: list[int] = []
    monkeypatch.setattr(
        torch.ops.mkldnn, "_linear_pointwise", lambda x, *_: called.append(len(x)), raising=False
    )
    with torch.inference_mode():
        for rows, features in ((200, 32), (8, 2048), (200, 128), (16, 2048)):
            linear(torch.zeros(rows, features), torch.zeros(features, features))
    assert called == [200, 16]


def test_gradients_flow_through_faster_layers() -> None:
    network = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(32, 8)
    expected = torch.autograd.grad(network(x).sum(), list(network.parameters()))
    use_faster_products(network)
    assert {type(layer) for layer in network} == {products.Linear, nn.ReLU}
    found = torch.autograd.grad(network(x).sum(), list(network.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
