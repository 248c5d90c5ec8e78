"""Draws what a model computes on one text, as a page for any browser: the command `look`.

Tested against what `flaxformer_lite.capture` and `flaxformer_lite.logit_lens` return, and in
Chromium at 1280 and 400 pixels (tools/browser). Not tested: other browsers.
"""
