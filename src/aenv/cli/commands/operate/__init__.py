"""Commands to serve and maintain platforms, hubs and hosts."""
