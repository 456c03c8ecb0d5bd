"""What an API's own document allows, and more, tried on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)


def withstand(
    operation: Any,
    mode: GenerationMode,
    headers: dict[str, str],
    *,
    server_errors: bool = False,
    examples: int = 15,
    change: Callable[[schemathesis.Case], None] = lambda case: None,
) -> None:
    """Nothing that is asked makes it fail, and every answer is one that the document knows.

    ``server_errors``: such an answer is fine here; ``change`` is done to what is asked before it is.
    """
    checks: list[Any] = [status_code_conformance, content_type_conformance, response_schema_conformance]
    if not server_errors:
        checks.append(not_a_server_error)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        change(case)
        case.call_and_validate(headers=headers, checks=checks)

    try:
        check()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, "a route without parameters cannot be asked wrongly"
