"""Copies of steps in other stores: on request, and in the background of a job that saves."""
