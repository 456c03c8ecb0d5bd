"""What a trainer imports: ``Environment``, its blocking twin, batches and transfers."""
