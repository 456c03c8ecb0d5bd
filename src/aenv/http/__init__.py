"""HTTP for instances, platform and hub: server, client, relay, unix sockets, ASGI bridge, OpenAPI."""
