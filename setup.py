"""Installs the pages of configs/ as flaxformer_lite.configs; the rest is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["flaxformer_lite*"]), "flaxformer_lite.configs"],
    package_dir={"flaxformer_lite.configs": "configs"},
)
