"""One process with nn.DataParallel, which divides each batch over the available GPUs."""

import torch
from _slow import Slow, parser
from torch import nn

ROWS, WIDTH = 64, 256


def main() -> None:
    options = parser()
    options.add_argument("--bare", action="store_true", help="the same model without the wrapper")
    args = options.parse_args()
    slow = Slow(args, 0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: nn.Module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    model = model.to(device)
    if not args.bare:
        model = nn.DataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(1, args.steps + 1):
        slow.turn()
        x = torch.randn(ROWS, WIDTH, device=device)
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    print(f"turns {slow.turns}")


if __name__ == "__main__":
    main()
