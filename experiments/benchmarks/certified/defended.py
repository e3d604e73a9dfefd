"""The defenses of the sweep: those of `conf/defense` with several settings, plug-ins, and some that act together."""

from typing import Any

from fedsim.settings.options import option, options

SHARPNESS = [[4, 5, 19], [14, 25, 5], [4, 14, 19]]
"""Policies of ATS that only sharpen or blur: the images stay alike from step to step."""

_PLUGINS = "experiments.benchmarks.certified.plugins"
_WHOLE = {"noise_multiplier": 0.0, "max_grad_norm": 0.5}

DEFENSES: dict[str, dict[str, dict[str, Any]]] = {
    "none": {},
    "ats": {"ats": {}},
    "ats_sharpness": {"ats": {"policies": SHARPNESS}},
    "ats_random": {"ats": {"policies": "random", "flip": True}},
    "mjp": {"mjp": {}},
    "mjp_half": {"mjp": {"ratio": 0.5}},
    "mjp_jp": {"mjp_jp": {"ratio": 0.5}},
    "mjp_jp_idx": {"mjp_jp_idx": {"ratio": 0.5}},
    "mjp_jp_unk": {"mjp_jp_unk": {"ratio": 0.5}},
    "mjp_spp": {"mjp_spp": {}},
    "mjp_dal": {"mjp_dal": {}},
    "mjp_linear": {"mjp_linear": {}},
    "no_pe": {"no_pe": {}},
    "fixed_pe": {"fixed_pe": {}},
    "withhold_pe": {"withhold_pe": {}},
    "withhold_patches": {"withhold": {"patterns": ["patch_weight"]}},
    "withhold_qkv": {"withhold": {"patterns": ["qkv_weight"]}},
    "withhold_head": {"withhold": {"patterns": ["head_weights"]}},
    "withhold_norms": {"withhold": {"patterns": ["*norm*"]}},
    "gradient_clip": {"gradient_clip": {}},
    "gradient_clip_0.01": {"gradient_clip": {"max_norm": 0.01}},
    "dp_sgd_0": {"dp_sgd": _WHOLE},
    "dp_sgd_0_layers": {"dp_sgd": {**_WHOLE, "per_layer": True}},
    "dp_sgd_1e-6": {"dp_sgd": {**_WHOLE, "noise_multiplier": 1e-6}},
    "dp_sgd_1e-6_layers": {"dp_sgd": {**_WHOLE, "noise_multiplier": 1e-6, "per_layer": True}},
    "local_dp": {"local_dp": {"epsilon": float("inf"), "clipping_norm": 0.5}},
    "topk_0.98": {"topk": {"ratio": 0.98}},
    "topk_0.9": {"topk": {"ratio": 0.9}},
    "topk_0.9_tensors": {"topk": {"ratio": 0.9, "per": "tensor"}},
    "topk_0.5": {"topk": {"ratio": 0.5}},
    "half": {"half": {}},
    "bfloat16": {"half": {"dtype": "bfloat16"}},
    "qsgd_16_bits": {"qsgd": {"levels": 32767}},
    "qsgd": {"qsgd": {}},
    "sign": {"sign": {}},
    "noise_1e-6": {"gradient_noise": {"relative_norm": 1e-6}},
    "noise_1e-4": {"gradient_noise": {"relative_norm": 1e-4}},
    "noise_1e-2": {"gradient_noise": {"relative_norm": 1e-2}},
    "soteria": {"soteria": {}},
    "soteria_0.01": {"soteria": {"prune_rate": 0.01}},
    "outpost": {"outpost": {}},
    "outpost_pruned": {"outpost": {"noised": 0.0, "prune": 0.02}},
    "precode": {"precode": {"k": 16}},
    "mixup": {"mixup": {}},
    "cutmix": {"cutmix": {}},
    "instahide": {"instahide": {"k": 2}},
    "secure_aggregation": {"secure_aggregation": {"clients": 2}},
    "scaled_tensors": {"scaled": {"_target_": f"{_PLUGINS}.ScaledTensors"}},
    "scaled_tensors_0.999": {"scaled": {"_target_": f"{_PLUGINS}.ScaledTensors", "least": 0.999}},
    "clipped_tensors": {"clipped": {"_target_": f"{_PLUGINS}.ClippedTensors"}},
    "clipped_entries": {"clamped": {"_target_": f"{_PLUGINS}.ClippedEntries"}},
    "random_mirror": {"mirror": {"_target_": f"{_PLUGINS}.RandomMirror"}},
    "random_roll": {"roll": {"_target_": f"{_PLUGINS}.RandomRoll"}},
    "added_image": {"added": {"_target_": f"{_PLUGINS}.AddedImage"}},
    "neighbour_mean": {"neighbour": {"_target_": f"{_PLUGINS}.NeighbourMean"}},
    "second_look": {"second": {"_target_": f"{_PLUGINS}.SecondLook"}},
    "mjp_jp+half": {"mjp_jp": {"ratio": 0.9}, "half": {}},
    "ats+half": {"ats": {}, "half": {}},
    "ats+clip": {"ats": {}, "gradient_clip": {"max_norm": 0.1}},
    "clip+noise_1e-6": {"gradient_clip": {}, "gradient_noise": {"relative_norm": 1e-6}},
    "scaled+half": {"scaled": {"_target_": f"{_PLUGINS}.ScaledTensors"}, "half": {}},
}
"""By name, what is not a defense's default."""


def defense_config(name: str) -> dict[str, dict[str, Any]]:
    """`cfg.defense`: each part as its file in `conf` has it, where it has one, with what is set here."""
    known = options("defense")
    return {key: option("defense", key, own) if key in known else own for key, own in DEFENSES[name].items()}
