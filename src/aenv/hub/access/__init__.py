"""Who may read and change what in a hub: tokens, rights and storage quotas."""
