"""Loads and saves published checkpoints: files, names, layouts and configs.

The tables that describe them are in models/.
"""
