"""File systems of a sandbox: its root, volumes, private files; safe handling of hostile trees and tars."""
