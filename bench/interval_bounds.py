"""Interval bounds of a batch, with and without the rounding of inference, against its plain forward pass.

The centre and the radius each take a forward pass: every convolution runs twice, by W and by |W|. So 2 is the floor. On
`small` (one thread) boxes, ReLU and |W| add 0.1, the rounding another 0.05 to 0.1.
"""

from __future__ import annotations

from _common import alternate, report

BATCH = 200


def main() -> None:
    import torch

    from holdfast import models
    from holdfast.bounds import image_box, interval_bounds, trace
    from holdfast.spec import ImageSpec

    torch.manual_seed(0)
    worst = 0.0
    for name in ("small", "large"):
        embedder = models.build(name, spec=ImageSpec(1, 28, 28)).eval()
        graph = trace(embedder)
        images = torch.rand(BATCH if name == "small" else BATCH // 4, 1, 28, 28)

        def bounds(rounding: bool) -> None:
            box = image_box(images, 0.1, rounding=rounding)  # noqa: B023
            interval_bounds(graph, box, rounding=rounding)  # noqa: B023

        with torch.no_grad():
            seconds = alternate(
                {
                    "forward": lambda: embedder.features(images),  # noqa: B023
                    "bounds": lambda: bounds(False),
                    "bounds with rounding": lambda: bounds(True),
                },
                repeats=31,
            )
        for kind, value in seconds.items():
            print(f"{name}, {kind}: {1e3 * value:.2f} ms ({value / seconds['forward']:.2f} x)")
        worst = max(
            worst, *(value / seconds["forward"] for kind, value in seconds.items() if kind != "forward")
        )
    report("interval_bounds", worst, 2.2, "lower", "the plain forward pass; the worst of small and large")


if __name__ == "__main__":
    main()
