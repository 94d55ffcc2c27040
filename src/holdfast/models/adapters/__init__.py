"""Models by name, one file for each kind of name. A new one is a file here and a line below (or in `libraries`)."""

from __future__ import annotations
