"""Families of recurrent networks."""
