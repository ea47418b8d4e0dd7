"""Pure functions on tensors: returns, surrogates, divergences, value losses, reduction.

No state, no modules, and no import but torch.
"""
