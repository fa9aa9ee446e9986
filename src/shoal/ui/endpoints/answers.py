"""Requests and answers: plain data out, checked arguments in."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from shoal.core.errors import OptionError, require
from shoal.core.files import parse_json
from shoal.training.catalogue import Catalogue

DIGITS = 8
"""Digits of the largest number of a curve; all others have as many decimals."""
MOST_RUNS = 500
"""The most runs in one request."""
MOST_BODY = 1 << 20


def answer(data: Any, status: int = 200) -> Response:
    """Plain data as JSON."""
    return Response(to_json(data), status, media_type="application/json")


def to_json(data: Any) -> str:
    """Data as JSON, which has no NaN and no infinity: they become null."""
    return json.dumps(to_plain(data), separators=(",", ":"), allow_nan=False)


def to_plain(value: Any) -> Any:
    """Dataclasses, arrays, paths and numbers that are not finite as plain data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return numbers(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def numbers(values: np.ndarray) -> list[Any]:
    """Numbers of a curve, rounded; None where there is none."""
    values = np.asarray(values)
    if values.dtype.kind != "f":
        return values.tolist()
    known = np.isfinite(values)
    largest = np.abs(values[known]).max(initial=0.0)
    decimals = int(np.clip(DIGITS - np.ceil(np.log10(largest)), 0, 15)) if largest > 0 else 0
    rounded = np.round(np.where(known, values, 0.0), decimals).astype(object)
    rounded[~known] = None
    return rounded.tolist()


def catalogue_of(request: Request) -> Catalogue:
    return request.app.state.catalogue


def run_of(request: Request) -> str:
    """The one run that a request is about."""
    return runs_of(request, 1)[0]


def runs_of(request: Request, most: int = MOST_RUNS) -> list[str]:
    """The runs that a request is about, in order, each once."""
    names = list(dict.fromkeys(request.query_params.getlist("run")))
    require(0 < len(names) <= most, "address", "run", len(names), f"given between 1 and {most} times")
    return names


def whole_of(request: Request, name: str, default: int, low: int, high: int) -> int:
    """A whole number of the address."""
    given = request.query_params.get(name, str(default))
    sound = given.isascii() and given.isdigit() and len(given) < 20 and low <= int(given) <= high
    require(sound, "address", name, given, f"a whole number from {low} to {high}")
    return int(given)


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object in the body of a write."""
    content = b""
    async for chunk in request.stream():
        content += chunk
        require(len(content) <= MOST_BODY, "body", "size", len(content), f"at most {MOST_BODY} bytes")
    try:
        found = parse_json(content, finite=True)
    except ValueError as error:
        raise OptionError(f"the body must be JSON: {error}") from error
    if not isinstance(found, dict):
        raise OptionError("the body must be a JSON object")
    return found
