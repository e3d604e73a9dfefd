"""From how many dB of PSNR a picture counts as what."""

RECOGNISABLE = 20.0
"""A rebuilt picture counts as recognisable."""

INDISTINGUISHABLE = 40.0
"""An eye sees no difference: what a defense takes of more than that protects nobody."""

EXACT = 60.0
"""A picture counts as exact: what rounding to 256 levels alone leaves is 58.9 dB. Keeps one exact picture from
outweighing all others in a mean."""
