"""Models as files that run without this package: ONNX and StableHLO."""
