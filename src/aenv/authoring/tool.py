"""A tool as agents see it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from aenv.authoring.declarations import Declaration
from aenv.authoring.signature import Signature


class Tool(BaseModel):
    """Name, description and schemas of a tool."""

    name: str
    description: str | None = None
    inputSchema: dict[str, Any]
    outputSchema: dict[str, Any] | None = None
    hidden: bool = False

    @classmethod
    def of(cls, declaration: Declaration, signature: Signature | None = None) -> Tool:
        """The tool that a decorated function is."""
        signature = signature or Signature(declaration.func, declaration.where)
        return cls(
            name=declaration.name,
            description=declaration.description or signature.description,
            inputSchema=signature.input_schema,
            outputSchema=signature.output_schema,
            hidden=declaration.hidden,
        )

    def get_mcp_tool(self) -> Any:
        """The same as an object of the MCP SDK."""
        from importlib import import_module  # the SDK costs a second of CPU; only who asks for it pays

        return import_module("mcp.types").Tool(
            name=self.name,
            description=self.description,
            inputSchema=self.inputSchema,
            outputSchema=self.outputSchema,
        )

    def get_openai_tool(self) -> dict[str, Any]:
        """The same in the form that OpenAI's chat completions take."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description or "",
                "parameters": self.inputSchema,
            },
        }
