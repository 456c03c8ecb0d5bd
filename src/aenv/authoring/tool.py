"""A tool as agents see it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from aenv.authoring.declarations import Declaration
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

    def get_mcp_tool(self) -> Any:
        """Return the tool as an object of the MCP SDK."""
        from importlib import import_module  # importing the SDK takes a second of CPU, so do it on demand

        return import_module("mcp.types").Tool(
            name=self.name,
            description=self.description,
            inputSchema=self.inputSchema,
            outputSchema=self.outputSchema,
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
