"""Services: environments that run until they are deleted, in replicas behind one URL."""
