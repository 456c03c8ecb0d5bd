"""The platform server: creates instances and services for many users, and routes calls to them."""
