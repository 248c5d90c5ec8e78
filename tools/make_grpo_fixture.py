"""Writes tests/contrib/rl/grpo.json: losses and gradients of TRL's GRPOTrainer on made-up answers.

    PYTHON tools/make_grpo_fixture.py tests/contrib/rl/grpo.json

PYTHON has torch, transformers and trl (1.16). TRL's own `_compute_loss` runs on log-probabilities
instead of a model; its gradient is with respect to them.
"""

import collections
import json
import sys
from pathlib import Path
from unittest import mock

import torch
from trl import GRPOTrainer

GROUP = 4
LENGTH = 6  # most tokens of an answer
# our options, and TRL's
CASES = {
    "grpo": ({}, {"loss_type": "grpo"}),
    "first update": ({}, {"loss_type": "grpo"}),
    "clip": (
        {"clip_low": 0.1, "clip_high": 0.28},
        {"loss_type": "grpo", "epsilon_low": 0.1, "epsilon_high": 0.28},
    ),
    "kl": ({"kl": 0.04, "kl_model": "DIR"}, {"loss_type": "grpo", "beta": 0.04}),
    "dr_grpo": ({"normalize": "none", "average": "constant"}, {"loss_type": "dr_grpo"}),
    "dapo": (
        {"average": "token", "clip_high": 0.28},
        {"loss_type": "dapo", "epsilon_high": 0.28},
    ),
    "gspo": (
        {"ratio": "sequence", "clip_low": 0.03, "clip_high": 0.04},
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon_low": 0.03,
            "epsilon_high": 0.04,
        },
    ),
    "gspo with kl": (
        {"ratio": "sequence", "kl": 0.1, "kl_model": "DIR"},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "beta": 0.1},
    ),
}


def advantages_of(rewards: torch.Tensor, scaled: bool) -> torch.Tensor:
    """As `_generate_and_score_completions` has it, with scale_rewards="group" or "none"."""
    grouped = rewards.view(-1, GROUP)
    advantages = rewards - grouped.mean(dim=1).repeat_interleave(GROUP)
    if scaled:
        advantages = advantages / (grouped.std(dim=1).repeat_interleave(GROUP) + 1e-4)
    return advantages


def compute_case(name: str, options: dict, settings: dict) -> dict:
    torch.manual_seed(len(name))
    shape = (2 * GROUP, LENGTH)
    new = (-torch.rand(shape) * 3).requires_grad_()
    old = new.detach() + 0.3 * torch.randn(shape)
    if name == "first update":
        old = new.detach().clone()
    reference = new.detach() + 0.3 * torch.randn(shape)
    rewards = torch.randint(0, 3, (2 * GROUP,)).float()
    counts = torch.randint(1, LENGTH + 1, (2 * GROUP,))
    mask = (torch.arange(LENGTH)[None] < counts[:, None]).long()
    trainer = mock.MagicMock()
    plain = {
        "top_entropy_quantile": 1.0,
        "aux_loss_enabled": False,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "use_vllm": False,
        "max_completion_length": LENGTH,
        "_entropy_bonus_enabled": False,
        "_metrics": collections.defaultdict(lambda: collections.defaultdict(list)),
    }
    for field, value in (plain | settings).items():
        setattr(trainer, field, value)
    trainer.model.training = False
    trainer.args.use_bias_correction_kl = False
    trainer.args.delta = None
    trainer.accelerator.num_processes = 1
    trainer.accelerator.gather = lambda x: x
    given = (new, torch.zeros(shape), None)
    trainer.configure_mock(**{"_get_per_token_logps_and_entropies.return_value": given})
    ids = torch.zeros(shape, dtype=torch.long)
    loss = vars(GRPOTrainer)["_compute_loss"](
        trainer,
        None,
        {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1],
            "completion_ids": ids,
            "completion_mask": mask,
            "advantages": advantages_of(rewards, options.get("normalize") != "none"),
            "old_per_token_logps": old,
            "ref_per_token_logps": reference,
            "num_items_in_batch": mask.sum(),
        },
    )
    loss.backward()
    arrays = {
        "new": new.detach(),
        "old": old,
        "reference": reference,
        "rewards": rewards,
        "mask": mask,
        "gradient": new.grad,
    }
    numbers = {key: x.tolist() for key, x in arrays.items()}
    return {"options": options, "loss": loss.item(), **numbers}


def main() -> None:
    cases = {name: compute_case(name, *case) for name, case in CASES.items()}
    Path(sys.argv[1]).write_text(json.dumps(cases) + "\n")


if __name__ == "__main__":
    main()
