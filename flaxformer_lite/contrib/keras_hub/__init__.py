"""Reads presets of KerasHub: BERT, RoBERTa, T5, Gemma and Gemma 2.

KerasHub writes others as transformers does, by `export_to_transformers`.
Tested against KerasHub 0.32 with random weights of each kind (tests/contrib/keras_hub). Not tested
against a published preset, or against other versions. Needs h5py.
"""
