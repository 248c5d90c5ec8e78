"""The pages of configs/ are installed as flaxformer_lite.configs; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["flaxformer_lite*"]), "flaxformer_lite.configs"],
    package_dir={"flaxformer_lite.configs": "configs"},
)
