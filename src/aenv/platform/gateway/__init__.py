"""The data plane: requests passed on to instances, published ports, log streams, and other servers."""
