"""Compares how checkpoint libraries behave; see bench/libraries.py."""
