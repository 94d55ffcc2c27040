"""`python -m holdfast`, also under `torchrun --nproc-per-node 2 -m holdfast train …`."""

from holdfast.cli import main

main()
