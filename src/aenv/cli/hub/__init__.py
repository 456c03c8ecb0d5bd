"""Parts of the commands that talk to a hub: options, access, versions and their notes."""
