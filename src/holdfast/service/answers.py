"""What the service answers, as JSON: the models of the OpenAPI, and how results become them."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

from pydantic import BaseModel, Field

from holdfast.certificate import Verdict
from holdfast.certify.smoothing import Rule
from holdfast.gallery import Hit, Item
from holdfast.goals import About
from holdfast.service.engine import Outcome
from holdfast.spec import PictureOf

API = "/api/v1"
PICTURE = "Whose pixels sizes are of: the file's, as decoded, or those that the network is given."


class ImageShape(BaseModel):
    """The images that an embedder takes."""

    channels: int
    height: int
    width: int


class SmoothingState(BaseModel):
    """The noise of a smoothed gallery, and how it is searched."""

    sigma: float
    n: int = Field(description="Samples of each query.")
    alpha: float = Field(description="All statements about a query are wrong with this probability at most.")
    rule: Rule = Field(description="By what hits are listed: the copies' mean vector, or their votes.")


class GalleryState(BaseModel):
    """A gallery that is served."""

    name: str
    available: bool = Field(description="False: it does not answer now, and the numbers are those last seen.")
    images: int
    dim: int
    generation: int = Field(description="Grows by one with each write.")
    fingerprint: str = Field(description="Of the embedder that made it.")
    architecture: str | None
    image: ImageShape
    picture: PictureOf = Field(description=PICTURE)
    smoothed: SmoothingState | None
    says: str = Field(description="What must be said of its answers, such as that they are of a closed set.")
    boxes: list[float] = Field(description="For which eps (linf) altered candidates can be certified.")
    threats: list[str] = Field(description="What can be certified: WHO:NORM.")
    methods: list[str]
    attackable: bool
    writable: bool


class LimitsState(BaseModel):
    """What one request may ask for."""

    k: int
    bytes: int
    pixels: int
    batch: int
    attack_steps: int
    seconds: float


class GoalState(BaseModel):
    """What an attacker can want."""

    name: str
    words: str
    about: About = Field(
        description="What it is about: a hit (the first if no target is sent), an item (send target), the whole "
        "list of hits, or the query alone."
    )
    labels: bool = Field(description="Whether it needs candidates of two classes.")


class Status(BaseModel):
    """The service, as this caller may use it."""

    version: str
    galleries: list[GalleryState]
    goals: list[GoalState] = Field(description="What a live attack can want.")
    limits: LimitsState
    roles: list[str]


class QueryState(BaseModel):
    """The picture that was asked about: an upload (digest) or an item (id)."""

    name: str
    digest: str | None
    id: str | None
    image: str | None = Field(description="Where the picture can be seen.")


class HitState(BaseModel):
    """A candidate at a rank; what is null does not apply."""

    rank: int
    id: str
    label: str | None
    distance: float
    tied: bool
    image: str | None
    best: int | None = Field(None, description="The best rank it can have under the threat.")
    worst: int | None = Field(None, description="The worst.")
    verdict: Verdict | None = None
    eps: float | None = Field(
        None, description="The size that is proved; for auto the largest that was found."
    )
    radius: float | None = Field(None, description="The l2 radius to which it stays (smoothed galleries).")
    pixel: float | None = Field(None, description="The same for every pixel by itself.")
    share: float | None = Field(None, description="The share of noisy copies that vote for it (rule votes).")
    reason: str = ""


_PLAIN = {"rank", "id", "label", "distance", "tied", "share"}
"""Of a hit: what a search says that was not asked to certify."""


class SearchAnswer(BaseModel):
    """The hits of one query."""

    query: QueryState
    gallery: str
    uid: str = Field(description="Of the gallery; another one where another took its place.")
    generation: int
    k: int
    threat: str | None
    picture: PictureOf | None = Field(None, description=PICTURE)
    hits: list[HitState]
    examined: int | None = Field(None, description="Candidates that needed the exact test.")
    candidates: int
    sharpened: bool | None = Field(
        None, description="False: too many candidates for the method; interval was used."
    )
    alpha: float | None = None
    samples: int | None = None
    seed: int | None = None
    rule: Rule | None = Field(None, description="By what a smoothed search lists its hits.")
    label: str | None = Field(
        None, description="The class of the nearest, of which a smoothed search says more."
    )
    label_radius: float | None = Field(None, description="To which l2 radius the nearest stays one of it.")
    seconds: float


class BatchAnswer(BaseModel):
    """The answers of several queries, in their order."""

    results: list[SearchAnswer]


class Move(BaseModel):
    """Where an item stood before and after an attack, in the whole gallery."""

    id: str
    before: int
    after: int


class AttackAnswer(BaseModel):
    """An attack, as it went: the pictures, and what a search says before and after."""

    goal: str
    objective: str = Field(description="The goal as it was sent.", deprecated=True)
    target: str | None
    threat: str
    clean: str = Field(description="The picture whose pixels are altered, as a data URL (PNG).")
    altered: str = Field(description="The altered picture, as a data URL (PNG).")
    difference: str = Field(description="altered - clean around mid-grey, amplified, as a data URL (PNG).")
    amplify: float
    before: SearchAnswer
    after: SearchAnswer
    moves: list[Move]
    reached: bool | None = Field(
        description="Whether the goal was reached, ties counting against the attacker; null: it is no yes or no."
    )
    held: bool = Field(description="Everything that was certified still holds.")
    contradicted: list[str] = Field(
        description="Hits whose certificate the attack shows to be wrong: there must be none."
    )
    steps: int
    seconds: float


class ItemAnswer(BaseModel):
    """One candidate of a gallery."""

    id: str
    label: str | None
    digest: str | None
    image: str | None
    gallery: str
    generation: int


class ItemsAnswer(BaseModel):
    """Some candidates of a gallery."""

    items: list[ItemAnswer]


class RemovedAnswer(BaseModel):
    """What a removal did."""

    id: str
    gallery: str
    removed: int
    generation: int


class HealthAnswer(BaseModel):
    """Whether the service can answer, and if not, why."""

    status: Literal["ok", "unavailable"]
    problems: list[str] = []


def item_url(item: Item | Hit, gallery: str) -> str | None:
    """Where an item's picture is shown; None where the gallery does not say where it is kept."""
    if item.path is None:
        return None
    return f"{API}/items/{quote(item.id, safe='/')}/image?gallery={quote(gallery, safe='')}"


def search_answer(outcome: Outcome, query: QueryState, gallery: str) -> SearchAnswer:
    """The answer to one search: what its hits and its proof say of themselves, where that was asked."""
    found, threat = outcome.found, outcome.threat
    whole = {} if found.proof is None else found.proof.to_dict()
    if threat is None:
        whole |= {"label": None, "label_radius": None}
    elif whole.get("label") is None:
        whole["label_radius"] = None
    said = {
        "query": query,
        "gallery": gallery,
        "uid": outcome.uid,
        "generation": outcome.generation,
        "k": outcome.k,
        "threat": None if threat is None else str(threat),
        "candidates": outcome.candidates,
        "hits": [_hit(hit, threat is not None, gallery) for hit in found],
        "seconds": round(outcome.seconds, 6),
    }
    shown = {name: whole[name] for name in SearchAnswer.model_fields.keys() & whole.keys()}
    return SearchAnswer(**{**shown, **said})


def _hit(hit: Hit, asked: bool, gallery: str) -> HitState:
    """A hit, and what its certificate says; of what was not asked only the votes, by which hits are listed."""
    certificate, fields = hit.certificate, hit.to_dict()
    known = HitState.model_fields.keys() if asked else _PLAIN
    reason = certificate.sentence() if asked and certificate is not None else ""
    shown = {name: fields[name] for name in known & fields.keys()}
    return HitState(**{**shown, "image": item_url(hit, gallery), "reason": reason})
