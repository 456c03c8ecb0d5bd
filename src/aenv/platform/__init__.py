"""The platform's server: creates, finds, proxies and ends instances for callers with a token."""
