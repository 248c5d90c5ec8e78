"""Recurrent networks: RNN, LSTM and GRU as mixers of any stack, and attention before transformers.

Tested against torch's nn.RNN, nn.LSTM and nn.GRU, and flax's cells: values and gradients, both
ways, padded rows (tools/make_recurrent_fixtures.py); and against the equations of Bahdanau et al.
and Luong et al. Not tested against published weights, of which none are read.
"""
