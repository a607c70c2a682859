"""The label bias in a hello's layout, which must follow the run's settings."""

from dataclasses import replace

import pytest
from federations import config_of

from benchmarks.faults.toy_client import LAYOUT, MODEL_ID
from samara.server.transport.quorum import Quorum, RunIdentity
from samara.shared.errors import LayoutError
from samara.shared.protocol.layout import LABEL_BIAS_GROUP, Tensor

WITH_BIAS = replace(LAYOUT, tensors=(*LAYOUT.tensors, Tensor("bias", 2, 1, LABEL_BIAS_GROUP)))


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_layout_without_the_runs_label_bias_is_refused_with_the_remedy(has_bias: bool) -> None:
    quorum = Quorum(config_of({"adapter.layers": "top:1", "adapter.label-bias": has_bias}))
    fitting, other = (WITH_BIAS, LAYOUT) if has_bias else (LAYOUT, WITH_BIAS)
    quorum.check(RunIdentity(fitting, MODEL_ID, 0))
    remedy = f"phone export … --set adapter.label-bias={str(has_bias).lower()}"
    with pytest.raises(LayoutError, match=f"label bias, .* {remedy}"):
        quorum.check(RunIdentity(other, MODEL_ID, 0))
