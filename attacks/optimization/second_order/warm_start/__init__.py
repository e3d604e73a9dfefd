"""How a start comes near: by errors of logits that are known, many likely images, a prior that fades."""

from attacks.optimization.second_order.warm_start.trail import Trail as Trail
from attacks.optimization.second_order.warm_start.warm_start import MUCH_NEARER as MUCH_NEARER
from attacks.optimization.second_order.warm_start.warm_start import RACERS as RACERS
from attacks.optimization.second_order.warm_start.warm_start import WarmStart as WarmStart
