"""How a start comes near: by errors of logits that are known, patches in any order, a prior that fades."""

from attacks.optimization.second_order.approach.approach import Approach as Approach
