"""File systems of a sandbox: its root, volumes and private files; safe handling of untrusted trees and tars."""
