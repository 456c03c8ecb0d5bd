"""The SDK for trainers: ``Environment``, ``SyncEnvironment``, batches and file transfer."""
