"""The `wire` section: how numbers travel between replicas and shards."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, model_serializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from .document.section import Section, Words, refusal

_WHOLE = ("fp32", "fp16", "bf16")
_LATER = ("int8", "int4", "one-bit", "threshold", "top-k")
"""Codecs that leave out what is sent with later pushes."""
_MAPPING = "or a mapping with name and tau, share or decay"


class PushCodec(Section):
    """How pushed numbers are written: a bare name, or a mapping with the name and what the codec needs."""

    name: Literal["fp32", "fp16", "bf16", "int8", "int4", "one-bit", "threshold", "top-k"] = Field(
        description="fp32: as they are; fp16, bf16: in half the bytes; int8, int4, one-bit: in about a 4th, an 8th, a "
        "31st of them; threshold: only those above tau; top-k: only the largest, in a 108th; these five keep what is "
        "left out for later pushes"
    )
    tau: Annotated[float, Field(ge=1e-37, le=1e37)] | None = Field(
        default=None, description="Of threshold: what a number must have gathered to be sent; gradient units"
    )
    share: Annotated[float, Field(ge=0.00025, le=1)] | None = Field(
        default=None, description="Of top-k: the largest of each 4,096 numbers that are sent; 1/32 where left out"
    )
    decay: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="Of top-k: factor, before each push, of what was left out so far; 1 where left out"
    )

    @model_validator(mode="before")
    @classmethod
    def _long_form(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        if value not in _WHOLE + _LATER:
            names = ", ".join(_WHOLE + _LATER)
            raise refusal("", f"must be one of {names}, {_MAPPING}, not {value[:60]!r}")
        return {"name": value}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Tell editors of the short form too."""
        return {"anyOf": [{"enum": [name for name in _WHOLE + _LATER if name != "threshold"]}, handler(core)]}

    @model_validator(mode="after")
    def _has_its_own(self) -> Self:
        if self.name == "threshold" and self.tau is None:
            raise refusal("", "needs tau with threshold: {name: threshold, tau: 1.0e-3}, in gradient units")
        if self.name != "threshold" and self.tau is not None:
            raise refusal("tau", f"must be left out with {self.name}: only threshold has one")
        for name in ("share", "decay"):
            if self.name != "top-k" and getattr(self, name) is not None:
                raise refusal(name, f"must be left out with {self.name}: only top-k has one")
        return self

    @property
    def later(self) -> bool:
        """Whether it leaves out what is sent with later pushes."""
        return self.name in _LATER

    @property
    def options(self) -> dict[str, float]:
        """What it needs beside its name."""
        return {name: value for name in ("tau", "share", "decay") if (value := getattr(self, name)) is not None}

    @model_serializer
    def _short_form(self) -> str | dict[str, Any]:
        return {"name": self.name, **self.options} if self.options else self.name


def _at_once(value: object) -> object:
    name = value.get("name") if isinstance(value, dict) else value
    if name in _LATER:
        raise refusal("", f"must be one of {', '.join(_WHOLE)}, not {name}: what it leaves out has to come later")
    return value


class Wire(Section):
    """How float32 travels between replicas and shards: as it is, or by a codec in fewer bytes.

    Initial values, evaluations, snapshots and what is exported are always as they are.
    """

    push: Annotated[PushCodec, Words(f"one of {', '.join(_WHOLE + _LATER)}, {_MAPPING}")] = Field(
        default=PushCodec(name="fp32"), description="From replicas to shards: gradients, or a worker's own weights"
    )
    pull: Annotated[Literal["fp32", "fp16", "bf16"], BeforeValidator(_at_once)] = Field(
        default="fp32", description="From shards to replicas: parameters; 16 bits hold them to 2^-11 or 2^-8"
    )
