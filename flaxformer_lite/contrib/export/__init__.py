"""Writes a model as files that run without this package: ONNX or StableHLO.

Tested: a tiny model of every family to ONNX 1.22, run by onnxruntime beside the model (the largest
differences are in docs/benchmarks/exports.txt), and StableHLO by jax on a CPU. Not tested:
onnxruntime's accelerators, StableHLO files on GPUs and TPUs. Needs the extra `export` for ONNX.
"""
