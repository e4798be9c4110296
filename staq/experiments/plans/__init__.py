"""Every experiment of the paper as data: one file each, of what is run on what, how often and for how long."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from staq.storage import data_files


@dataclass(frozen=True)
class Variant:
    """One curve: an algorithm and how it departs from its preset."""

    name: str
    """As in the legend, and as the folder of its runs."""
    algo: str
    """As on the command line."""
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    actions: str | None = None
    """How continuous actions become finite."""
    environments: list[str] = field(default_factory=list)
    """Where it is run, if not in all of the experiment's."""
    presets: dict[str, str] = field(default_factory=dict)
    """By environment, where it is not the one made for it."""
    timesteps: dict[str, int] = field(default_factory=dict)
    """By environment, where its runs are of another length than the experiment's."""


@dataclass(frozen=True)
class Experiment:
    """One file of this folder, at the paper's scale."""

    name: str
    """The file's name."""
    title: str
    paper: str
    """Which figure or table it is."""
    environments: list[str]
    timesteps: int
    """Environment steps of a run."""
    seeds: int
    variants: list[Variant]
    paper_timesteps: int
    """Those of the paper, which are the same unless the file says otherwise."""
    paper_seeds: int
    sticky_rates: list[float] = field(default_factory=list)
    """λ of the uniform sticky policies whose episodes that reach the goal are counted beside the runs."""
    evaluations: int = 50
    """About so many of a run, at any budget that leaves as many iterations."""
    minutes: list[float] = field(default_factory=list)
    """Of one core's training time, after which returns are compared, rather than after as many steps."""
    timed: bool = False
    """Its runs are not trained but timed deep in them, one after the other, with all cores; seeds are rounds."""


def names() -> tuple[str, ...]:
    """Every experiment."""
    return data_files.names(__name__)


def load(name: str) -> Experiment:
    """An experiment by name; an unknown one is an error that names the nearest."""
    content = data_files.content(__name__, name, "experiment")
    variants = [Variant(**variant) for variant in content.pop("variants")]
    of_the_paper = {"paper_timesteps": content["timesteps"], "paper_seeds": content["seeds"]}
    return Experiment(name=name, variants=variants, **(of_the_paper | content))
