"""Commands to serve and look after platforms, hubs and hosts."""
