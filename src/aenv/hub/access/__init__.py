"""Access control of a hub: tokens, rights and storage quotas."""
