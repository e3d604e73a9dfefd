"""Settings of runs that the tests write."""

DATA = {"_target_": "fedsim.data.Digits", "test_fraction": 0.2, "auxiliary_fraction": 0.0, "seed": 0}
MODEL = {"name": "vit_nano_patch2_8", "num_classes": None, "kwargs": {"depth": 1}}
MJP = {"mjp": {"_target_": "defenses.MaskedJigsawPuzzle", "ratio": 0.3, "min_block": 2}}
NO_PE = {"no_pe": {"_target_": "defenses.NoPositionEmbedding"}}
