"""The temperature of conversations where nobody names one."""

from __future__ import annotations

from typing import Annotated

import typer

from pagemill.options import GenerateOptions
from pagemill.v1 import model_pb2

TALKING = 0.2
"""Small models ramble at 1, which is what an unset temperature means for a model without defaults of its own."""

Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        help="0 (greedy) to 100.",
        rich_help_panel="Sampling",
        show_default=f"the model's, else {TALKING}",
    ),
]


def for_talking(asked: GenerateOptions, model: model_pb2.Model) -> GenerateOptions:
    """The options, with a temperature fit for talking where neither they nor the model name one."""
    if "temperature" in asked or model.sampling_defaults.HasField("temperature"):
        return asked
    return {**asked, "temperature": TALKING}
