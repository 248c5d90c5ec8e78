"""Reads presets of KerasHub: BERT, RoBERTa, GPT-2, T5, Llama, Mistral, Gemma and Gemma 2.

Tested against KerasHub 0.32 with random weights of each kind (tests/contrib/keras_hub). Not tested
against a published preset, or against other versions. Needs h5py.
"""
