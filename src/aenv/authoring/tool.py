"""A tool as agents see it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from aenv.authoring.declarations import Declaration
from aenv.authoring.output_schema import is_wrapped, wrapped
from aenv.authoring.signature import Signature


class Tool(BaseModel):
    """Name, description and schemas of a tool, as MCP lists them."""

    name: str
    description: str | None = None
    inputSchema: dict[str, Any]
    outputSchema: dict[str, Any] | None = None
    hidden: bool = False

    @classmethod
    def of(cls, declaration: Declaration, signature: Signature | None = None) -> Tool:
        """Return the tool that a declaration describes."""
        signature = signature or Signature(declaration.func, declaration.where)
        return cls(
            name=declaration.name,
            description=declaration.description or signature.description,
            inputSchema=signature.input_schema,
            outputSchema=signature.output_schema,
            hidden=declaration.hidden,
        )

    def get_mcp_tool(self, *, any_output: bool = False) -> Any:
        """Return the tool as an object of the MCP SDK.

        ``any_output``: the client speaks MCP 2026-07-28 or newer, where results need not be objects.
        """
        output = self.outputSchema
        if output is not None and is_wrapped(output, any_output=any_output):
            output = wrapped(output)
        from importlib import import_module  # importing the SDK takes a second of CPU, so do it on demand

        return import_module("mcp.types").Tool(
            name=self.name,
            description=self.description,
            inputSchema=self.inputSchema,
            outputSchema=output,
        )

    def get_openai_tool(self) -> dict[str, Any]:
        """Return the tool in the format of OpenAI's chat completions API."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description or "",
                "parameters": self.inputSchema,
            },
        }
