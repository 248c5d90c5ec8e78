"""Writes a model as files that run without this package: ONNX, StableHLO, or a page of HTML.

Tested: a tiny model of every family to ONNX 1.22, run by onnxruntime beside the model
(docs/exports.md has the largest differences), StableHLO by jax on a CPU, and the page in
Chromium. Not tested: onnxruntime's accelerators, StableHLO files on GPUs and TPUs, other browsers.
Needs the extra `export` for ONNX, and two libraries of npm for pages.
"""
