"""What the models of all bodies share."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

MAX_LABEL_CHARS = 1024

Text = Annotated[str, Field(max_length=MAX_LABEL_CHARS)]


class StrictModel(BaseModel):
    """No coercion, finite numbers; unknown fields are ignored, as vLLM does.

    `served_fields` are names that this kind of body serves and others refuse (`server/unsupported.py`).
    """

    served_fields: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)
