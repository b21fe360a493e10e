"""The review page's server: label issues in pages, images on demand, decisions written at once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ncsam._errors import bad_value, need, unknown_name
from ncsam._files import atomic_path, read_json
from ncsam.auditing.findings import CHECKS
from ncsam.automl.questions import Questions, candidate_predictions
from ncsam.data.types import DataSet
from ncsam.engine.task import task_of
from ncsam.errors import RunError
from ncsam.review.progress import progress
from ncsam.review.queue import Queue, View, check_reviewer
from ncsam.review.samples import LARGE, SMALL, Samples
from ncsam.runs import layout
from ncsam.runs.decisions import Decisions
from ncsam.runs.reader import RunFolder
from ncsam.runs.writer import writing

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_FILES = {
    "": ("page.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
    "page.svg": ("page.svg", "image/svg+xml"),
}
#: What a review is for: the labels most likely wrong come first, or ten samples at a time that tell candidates apart.
PURPOSES = ("label-issues", "model-selection")
_LONGEST_BODY = 10_000  # bytes
_CANDIDATES, _NEIGHBORS = 100, 4


class Review:
    """The review of one run: its queue, samples, decisions, and the view to restore.

    Args:
        folder: the run folder.
        reviewer: the name to record with each decision. `None` uses the last one, at first "reviewer".
        dataset: the data, if it is in memory. `None` reads it as the configuration says.
        purpose: "label-issues" or "model-selection".

    Raises:
        UsageError: if the purpose or the name is invalid, or the run has no predictions to select models with.
        RunError: if the labels have changed since training.
    """

    def __init__(
        self,
        folder: Path,
        *,
        reviewer: str | None = None,
        dataset: DataSet | None = None,
        purpose: str = PURPOSES[0],
    ) -> None:
        if purpose not in PURPOSES:
            raise unknown_name("purpose", purpose, PURPOSES)
        if reviewer is not None:
            check_reviewer(reviewer)
        run = RunFolder.read(folder)
        task = task_of(folder, dataset)
        split = task.dataset.train
        self.folder = folder
        self.queue = Queue(run)
        if len(self.queue) != len(split) or not np.array_equal(self.queue.given_label, split.labels[self.queue.index]):
            raise RunError(f"the labels of {run.config.get('data')} have changed since {folder} was trained")
        self.classes = list(task.dataset.classes)
        self.samples = Samples(split, task.dataset.columns)
        self.decisions = Decisions(folder, write=True)
        try:
            self.decisions.check(len(split), len(self.classes))
        except RunError:
            self.decisions.close()
            raise
        self.posterior = run.posterior
        self.noise = run.summary.get("noise_estimate")
        try:
            selects = purpose == "model-selection"
            self.questions = Questions(folder, candidate_predictions(folder, task)) if selects else None
        except BaseException:
            self.decisions.close()
            raise
        self.view = self._saved_view() if self.questions is None else View()
        if reviewer is not None and reviewer != self.view.reviewer:
            self.view = View.of({**asdict(self.view), "reviewer": reviewer, "place": 0})

    def close(self) -> None:
        self.decisions.close()

    def _saved_view(self) -> View:
        path = self.folder / layout.REVIEW_VIEW
        try:
            return View.of(read_json(path)) if path.is_file() else View()
        except (OSError, ValueError, TypeError):
            return View()

    # --- what the page asks

    def start(self) -> dict[str, Any]:
        return {
            "run": self.folder.resolve().name,
            "purpose": "label-issues" if self.questions is None else "model-selection",
            "classes": self.classes,
            "pairs": self.queue.pairs()[:200],
            "findings": [[name, CHECKS[name].title, count] for name, count in self.queue.checks().items()],
            "view": asdict(self.view),
            **self.state(),
        }

    def state(self) -> dict[str, Any]:
        found = progress(self.queue, self.decisions, self.posterior, self.noise)
        if self.questions is not None:
            asked = self.questions.asked()
            decided = sum(self.decisions.verdict(index) is not None for index in asked)
            said = self.questions.said(self.decisions)
            found |= {"total": len(asked), "decided": decided, **said}
            answered = f"{decided:,} of {len(asked):,} questions answered. " if asked else ""  # none drawn yet
            found["sentence"] = answered + said["sentence"]
        return {"progress": found, "reviewers": self.decisions.reviewers}

    def keep_view(self, given: dict[str, Any]) -> View:
        """Store the view, to be restored when the page is opened again.

        Args:
            given: fields of `View`, as the page sent them.

        Returns:
            The validated view.
        """
        view = View.of(given)
        if view != self.view:
            self.view = view
            if self.questions is not None:  # the place in the list of label issues is left as it was
                return view
            path = self.folder / layout.REVIEW_VIEW
            with writing(path), atomic_path(path, make_folder=False) as temporary:
                temporary.write_text(json.dumps(asdict(view)) + "\n", encoding="utf-8")
        return view

    def items(self, given: dict[str, Any], limit: int, back: bool) -> dict[str, Any]:
        """Return a page of the view.

        Args:
            given: fields of `View`, as the page sent them.
            limit: maximum number of samples.
            back: return the samples before the view's place instead.

        Returns:
            `items`, `total` (all that the view shows) and `before` (those before the page).
        """
        view = self.keep_view(given)
        if self.questions is not None and view.status == "undecided":
            left = self.queue.row_of[self.questions.draw(self.decisions)]
            return {"items": [self.item(int(row)) for row in left], "total": len(left), "before": 0}
        rows, total, before = self.queue.page(view, self.decisions, limit, back=back)
        return {"items": [self.item(int(row), view.order) for row in rows], "total": total, "before": before}

    def item(self, row: int, order: str = "worst") -> dict[str, Any]:
        """Return what the page shows of a sample: labels, scores, findings, decisions and content.

        Args:
            row: row of the queue.
            order: "worst" or "pair", in which its `place` is given.
        """
        queue = self.queue
        index = int(queue.index[row])
        return {
            "index": index,
            "place": queue.place(row, order),
            "name": queue.names[row],
            "given_label": int(queue.given_label[row]),
            "suggested_label": int(queue.suggested_label[row]),
            "label_quality": float(queue.label_quality[row]),
            "p_wrong": None if queue.p_wrong is None else float(queue.p_wrong[row]),
            "p_suggested": None if queue.p_suggested is None else float(queue.p_suggested[row]),
            "findings": [f"{CHECKS[f.check].title}: {f.evidence}" for f in self.queue.findings_of(index)],
            "decisions": [
                {"reviewer": d.reviewer, "choice": d.choice, "label": d.label} for d in self.decisions.of(index)
            ],
            **self.samples.shown(index),
        }

    def neighbors(self, index: int) -> dict[str, Any]:
        """Return samples that look like this one, among typical ones of its given and its suggested label.

        Args:
            index: position in the training split.

        Returns:
            `label` and `items`, for each of `given_label` and `suggested_label`.
        """
        row = self._row(index)
        found: dict[str, Any] = {}
        for name in ("given_label", "suggested_label"):
            label = int(getattr(self.queue, name)[row])
            near = self.samples.nearest(index, self.queue.typical(label, _CANDIDATES), _NEIGHBORS)
            found[name] = {"label": label, "items": [self.item(self._row(i)) for i in near]}
        return found

    def decide(self, given: dict[str, Any]) -> dict[str, Any]:
        """Record a decision.

        Args:
            given: `index`, `choice`, `reviewer` and, for another class, `label`, as the page sent them.

        Returns:
            The updated `item`, and the progress.

        Raises:
            UsageError: if an entry is missing, unknown or invalid.
        """
        if not {"index", "choice", "reviewer"} <= set(given) <= {"index", "choice", "reviewer", "label"}:
            raise bad_value("decision", sorted(given), "index, choice, reviewer and, for another class, label")
        row = self._row(given["index"])
        label = given.get("label")
        if label is not None and not (type(label) is int and 0 <= label < len(self.classes)):
            raise bad_value("label", label, f"a class number from 0 to {len(self.classes) - 1}")
        self.decisions.add(
            given["index"],
            given["choice"],
            label,
            int(self.queue.given_label[row]),
            int(self.queue.suggested_label[row]),
            check_reviewer(given["reviewer"]),
        )
        return {"item": self.item(row, self.view.order), **self.state()}

    def undo(self, given: dict[str, Any]) -> dict[str, Any]:
        """Undo the last decision of a reviewer.

        Args:
            given: `reviewer`, as the page sent it.

        Returns:
            The updated `item`, or `None` if there was nothing to undo, and the progress.
        """
        taken = self.decisions.undo(check_reviewer(given.get("reviewer")))
        item = None if taken is None else self.item(self._row(taken.index), self.view.order)
        return {"item": item, **self.state()}

    def _row(self, index: object) -> int:
        if type(index) is not int or not 0 <= index < len(self.queue):
            raise bad_value("index", index, f"a sample from 0 to {len(self.queue) - 1}")
        return int(self.queue.row_of[index])


def application(review: Review) -> Starlette:
    """Return the Starlette application of the page, without the guard.

    Args:
        review: the review to serve.
    """
    need("starlette", "review", "the review page")
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    page = resources.files("ncsam.review") / "page"

    async def file(request: Request) -> Response:
        name, kind = _FILES[request.url.path.removeprefix("/")]
        return Response((page / name).read_bytes(), media_type=kind, headers={"cache-control": "no-store"})

    async def start(request: Request) -> Response:
        return JSONResponse(review.start())

    async def items(request: Request) -> Response:
        given = await _body(request)
        limit, back = given.pop("limit", 24), given.pop("back", False)
        if type(limit) is not int or limit < 1:
            raise bad_value("limit", limit, "a whole number from 1")
        return JSONResponse(await asyncio.to_thread(review.items, given, limit, back is True))

    async def view(request: Request) -> Response:
        review.keep_view(await _body(request))
        return JSONResponse({})

    async def neighbors(request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(review.neighbors, request.path_params["index"]))

    async def image(request: Request) -> Response:
        index = request.path_params["index"]
        review._row(index)
        longest = LARGE if request.path_params["size"] == "large" else SMALL
        found = await asyncio.to_thread(review.samples.image, index, longest)
        if found is None:
            raise HTTPException(404, "this sample has no image that can be shown")
        return Response(found[0], media_type=found[1], headers={"cache-control": "private, max-age=3600"})

    async def decide(request: Request) -> Response:
        return JSONResponse(review.decide(await _body(request)))

    async def undo(request: Request) -> Response:
        return JSONResponse(review.undo(await _body(request)))

    async def mistake(request: Request, error: Exception) -> Response:
        return PlainTextResponse(str(error), status_code=400)

    async def failure(request: Request, error: Exception) -> Response:
        return PlainTextResponse(str(error), status_code=500)

    return Starlette(
        routes=[
            *(Route(f"/{name}", file) for name in _FILES),
            Route("/api/start", start),
            Route("/api/items", items, methods=["POST"]),
            Route("/api/view", view, methods=["POST"]),
            Route("/api/neighbors/{index:int}", neighbors),
            Route("/image/{size}/{index:int}", image),
            Route("/api/decide", decide, methods=["POST"]),
            Route("/api/undo", undo, methods=["POST"]),
        ],
        exception_handlers={ValueError: mistake, RunError: failure},
    )


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object that a page sent. Forms of other pages cannot send this content type without a preflight."""
    from starlette.exceptions import HTTPException

    if request.headers.get("content-type") != "application/json":
        raise HTTPException(415, "expected application/json")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST_BODY:
            raise HTTPException(413, "more than a decision needs")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise bad_value("body", body[:80], "a JSON object") from error
    if not isinstance(given, dict):
        raise bad_value("body", body[:80], "a JSON object")
    return given
