"""The hub over HTTP: routes, request bodies, OpenAPI, webhooks, and the server."""
