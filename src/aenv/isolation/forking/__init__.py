"""The fork server: the zygote, preloaded parents, and the sandboxes that are forked from them."""
