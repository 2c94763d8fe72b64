"""How numbers are computed and what happens to BatchNorm statistics."""

from __future__ import annotations

from typing import Literal

Statistics = Literal["average", "local", "batch"]
"""How BatchNorm statistics are handled. average: the server averages them with the clients' weights.
local: they stay with their client, and the global model is tested on the statistics of the test batch.
batch: there are none, and every forward pass normalises by its own batch."""


Precision = Literal["fp32", "tf32", "bf16"]
"""fp32: full. tf32: matrix products and convolutions on a GPU round their inputs to 10 bits, also in losses
and at the server. bf16: models' passes under autocast; weights, optimiser and losses stay in float32."""


PrecisionOrAuto = Literal["auto", Precision]


Teacher = Literal["running", "batch"]
"""What the BatchNorms of a teacher normalise by: its own running statistics, or those of the client's batch,
as in the released FedVLS, which leaves its teacher in training mode."""
