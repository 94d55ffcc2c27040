"""The fused bounds of all pairs of distances, forward and backward, against the broadcast form in torch."""

from __future__ import annotations

from _common import alternate, report

BOXES, VECTORS, DIM = 64, 512, 128


def main() -> None:
    import torch

    from holdfast.bounds import Box, distance_bounds

    torch.manual_seed(0)
    centre, vectors = torch.randn(BOXES, DIM), torch.randn(VECTORS, DIM)
    radius = 0.3 * torch.rand(BOXES, DIM)

    def broadcast(box: Box, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gap = (box.centre[:, None] - points[None]).abs()
        return (gap + box.radius[:, None]).norm(dim=2), torch.relu(gap - box.radius[:, None]).norm(dim=2)

    def step(function: object, backward: bool) -> None:
        tensors = [t.clone().requires_grad_(backward) for t in (centre, radius, vectors)]
        upper, lower = function(Box(tensors[0], tensors[1]), tensors[2])  # type: ignore[operator]
        if backward:
            (upper.sum() + lower.sum()).backward()

    def ratio(backward: bool) -> float:
        seconds = alternate(
            {
                "fused": lambda: step(distance_bounds, backward),
                "broadcast": lambda: step(broadcast, backward),
            },
            repeats=15,
        )
        name = "forward and backward" if backward else "forward"
        print(f"{name}: fused {1e3 * seconds['fused']:.2f} ms, broadcast {1e3 * seconds['broadcast']:.2f} ms")
        return seconds["broadcast"] / seconds["fused"]

    ratios = [ratio(False), ratio(True)]
    report("pair_bounds", min(ratios), 8, "higher", "the broadcast form in torch; the smaller of both ratios")


if __name__ == "__main__":
    main()
