"""The data plane: requests forwarded to instances, published ports, log streams, and other servers."""
