"""The platform's server: instances for whoever may ask for them."""
