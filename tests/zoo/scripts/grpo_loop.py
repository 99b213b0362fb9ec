"""Reinforcement learning of a language model: each turn samples several completions of a prompt,
rewards them by a Python function, compares them within their group, and takes one step."""

import argparse

import torch
import torch.distributed as dist
from _distributed import end, start
from _gpt import TOKENS, Gpt
from _planted import Planted, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PROMPTS, GROUP, PROMPT, COMPLETION, PENALTY = 4, 4, 6, 8, 0.05


@torch.no_grad()
def complete(model: nn.Module, prompts: torch.Tensor) -> torch.Tensor:
    """The prompts with sampled tokens behind them."""
    tokens = prompts
    for _ in range(COMPLETION):
        chances = model(tokens)[:, -1].softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1)], dim=1)
    return tokens


def reward(tokens: torch.Tensor, planted: Planted) -> torch.Tensor:
    """How often a token follows the pattern, as a verifier in Python would count it."""
    planted.here("reward")
    scores = []
    for row in tokens.tolist():
        pairs = zip(row[PROMPT - 1 :], row[PROMPT:], strict=False)
        scores.append(sum((b - a) % TOKENS < 8 for a, b in pairs) / COMPLETION)
    return torch.tensor(scores)


def find_log_chances(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Of the completion's tokens."""
    logits = model(tokens[:, :-1])[:, PROMPT - 1 :]
    chosen = tokens[:, PROMPT:, None]
    return torch.gather(logits.log_softmax(-1), 2, chosen).squeeze(-1)


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    planted = Planted(args, rank)
    torch.manual_seed(0)
    policy, reference = Gpt(planted), Gpt(planted)
    reference.load_state_dict(policy.state_dict())
    reference.requires_grad_(False).eval()
    model = DistributedDataParallel(policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    torch.manual_seed(100 + rank)
    for _ in range(args.steps):
        planted.turn()
        prompts = torch.randint(TOKENS, (PROMPTS, PROMPT)).repeat_interleave(GROUP, dim=0)
        policy.eval()
        tokens = complete(policy, prompts)
        with torch.no_grad():
            expected = find_log_chances(reference, tokens)
        rewards = reward(tokens, planted)
        groups = rewards.view(PROMPTS, GROUP)
        spread = groups.std(dim=1, keepdim=True) + 1e-4
        advantages = ((groups - groups.mean(dim=1, keepdim=True)) / spread).flatten()
        policy.train()
        own = find_log_chances(model, tokens)
        gain = torch.exp(own - own.detach()) * advantages[:, None]
        distance = torch.exp(expected - own) - (expected - own) - 1
        loss = -(gain - PENALTY * distance).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        gathered = [torch.empty_like(rewards) for _ in range(world)]
        dist.all_gather(gathered, rewards)
        planted.log(torch.cat(gathered).mean().item())
    planted.finish()


if __name__ == "__main__":
    options = parser(steps=40, place="reward").parse_args()
    train(options, *start())
    end()
