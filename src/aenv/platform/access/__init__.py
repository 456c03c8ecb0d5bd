"""Tokens, quotas, the audit log and TLS."""
