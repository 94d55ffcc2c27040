"""Rank intervals of the top 40 of 1,000 queries against 1,000 candidates, beyond the bounds: seconds."""

from __future__ import annotations

from _common import alternate, report

QUERIES, CANDIDATES, DIM, TOP = 1000, 1000, 128, 40


def main() -> None:
    import torch

    from holdfast.bounds import Box
    from holdfast.certify import AlteredQuery, nearest

    torch.manual_seed(0)
    classes = torch.randn(10, DIM)
    centre = classes[torch.arange(QUERIES) % 10] + 0.3 * torch.randn(QUERIES, DIM)
    vectors = classes[torch.arange(CANDIDATES) % 10] + 0.3 * torch.randn(CANDIDATES, DIM)
    hits = nearest(centre, vectors, TOP)
    worst = 0.0
    for share in (0.001, 0.01, 0.1):
        box = Box(centre, share * torch.rand(QUERIES, DIM))
        seconds = alternate({"ranks": lambda: AlteredQuery(box, vectors).ranks(hits)}, repeats=5)  # noqa: B023
        sure = AlteredQuery(box, vectors).ranks(hits).stays_within(TOP).float().mean().item()
        print(
            f"radius up to {share}: {seconds['ranks']:.2f} s; {sure:.2f} of the hits surely stay in the top {TOP}"
        )
        worst = max(worst, seconds["ranks"])
    report("certify_ranks", worst, 1.0, "lower", "seconds, the slowest of three widths of box")


if __name__ == "__main__":
    main()
