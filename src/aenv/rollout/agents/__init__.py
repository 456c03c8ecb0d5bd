"""Ready agents."""
