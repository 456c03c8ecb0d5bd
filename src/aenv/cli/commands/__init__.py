"""Commands, one file each, in folders by purpose; ``aenv.cli.main`` lists them."""
