"""What all experiments share: a config is swept, and its Dataset drawn, tabled and put on a page."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import xarray as xr

from .._progress import Progress, silent
from . import store
from .listing import HERE, Executor
from .page import write_page
from .sweeping import Workspace, record_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from pandas import DataFrame


class Study:
    """An experiment as code: subclass it, and fill in what is yours.

    A subclass has at least a `name`, a `title`, a `config`, a `point`, `over`, and a template `page.md` beside it; see
    `page` for what a template may say. It has the values of `values`, and `config` and `dataset`.

    Attributes:
        name: of its files: `name.nc`, `name.html`.
        title: of its Dataset.
        config: a frozen dataclass that decides every number, with a class method `quick`.
        point: a function of a module, marked `resumable`, called with a value of each axis and with the record of a
            config; it gives a Dataset.
        over: the axes of the sweep, by the names of the point's arguments, each with the field of the config that has
            its values; a whole number n stands for 0, …, n − 1.
        same: fields of the config that change the numbers of no point, each with a value that all records of points
            have: runs that differ in these fields share their points, so that a run can grow.
        vectorised: whether a point takes arrays of values, as in `Sweep`.
        long_names: what each variable of the Dataset is, in words.
        folder: where the sweep is kept, inside the folder of the experiment.
        embedded: the format of figures on the page, "svg" or "png"; files are written in both.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    config: ClassVar[Any]
    point: ClassVar[Callable[..., xr.Dataset]]
    over: ClassVar[Mapping[str, str]] = {}
    same: ClassVar[Mapping[str, Any]] = {}
    vectorised: ClassVar[bool] = False
    long_names: ClassVar[Mapping[str, str]] = {}
    folder: ClassVar[str] = "sweep"
    embedded: ClassVar[str] = "svg"

    def axes(self, config: Any) -> Mapping[str, Sequence[Any]]:
        """The values that are swept over, by the names of the point's arguments."""
        fields = {axis: getattr(config, field) for axis, field in self.over.items()}
        return {axis: list(range(value) if isinstance(value, int) else value) for axis, value in fields.items()}

    def record(self, config: Any) -> dict[str, Any]:
        """What decides the numbers of a point."""
        return record_of(config, **self.same)

    def batch(self, config: Any) -> int | Mapping[str, int]:
        """How many points run together, as in `Sweep`."""
        return 1

    def complete(self, found: xr.Dataset, config: Any) -> xr.Dataset:
        """The Dataset of the sweep with everything that follows from it."""
        return found

    def figures(self, dataset: xr.Dataset, config: Any) -> Mapping[str, Figure]:
        """Figures by name: by default, what each function `draw_NAME` of the module `figures` beside the study draws.

        A function gets the Dataset and the config, and returns None if there is nothing to draw. Matplotlib is slow to
        import: it is imported when something is drawn.
        """
        module = importlib.import_module(".figures", type(self).__module__)
        functions = {name: value for name, value in vars(module).items() if name.startswith("draw_")}
        drawn = {name.removeprefix("draw_"): draw(dataset, config) for name, draw in functions.items()}
        return {name: figure for name, figure in drawn.items() if figure is not None}

    def tables(self, dataset: xr.Dataset, config: Any) -> Mapping[str, DataFrame]:
        """Tables by the names of their CSV files."""
        return {}

    def values(self, dataset: xr.Dataset, config: Any) -> Mapping[str, Any]:
        """What the page says besides the Dataset and the config, by the names that the template has for it."""
        return {}

    def sized(self, quick: bool, seed: int) -> Any:
        """The config of the usual or of the quick size; the seed is left out where nothing is random."""
        given = {"seed": seed} if "seed" in self.config.__dataclass_fields__ else {}
        return self.config.quick(**given) if quick else self.config(**given)

    def data(
        self,
        config: Any,
        *,
        folder: str | Path | None = None,
        executor: Executor = HERE,
        progress: Progress | None = None,
    ) -> xr.Dataset:
        """The numbers of the experiment, as its `Study` describes them.

        Arguments:
            folder: where the sweep is kept and continued; default: nowhere.
            executor: where points run.
            progress: called as progress(done, total, message).
        """
        where = None if folder is None else Path(folder)
        dataset = self.compute(config, Workspace(where, executor, progress or silent))
        for name, variable in dataset.data_vars.items():
            if text := self.long_names.get(str(name)):
                variable.attrs["long_name"] = text
        return dataset.assign_attrs(title=self.title, config=json.dumps(dataclasses.asdict(config)))

    def compute(self, config: Any, workspace: Workspace) -> xr.Dataset:
        """The Dataset without what `data` says about it: one sweep, unless a study has several."""
        given = {"batch": self.batch(config), "vectorised": self.vectorised}
        found = workspace.sweep(type(self).point, self.axes(config), self.record(config), **given)
        return self.complete(found, config)

    def run(self, config: Any, out: str | Path, *, executor: Executor = HERE, progress: Progress | None = None) -> Path:
        """Data, figures, tables and page of the experiment into a folder; returns the path of the page.

        Points that a run with the same settings finished in this folder are reused.

        Arguments:
            executor: where points run.
            progress: called as progress(done, total, message).
        """
        out, report = Path(out), progress or silent
        dataset = self.data(config, folder=out / self.folder, executor=executor, progress=report)
        store.save(dataset, out / f"{self.name}.nc", store.fingerprint(config))
        points = math.prod(len(values) for values in self.axes(config).values())
        report(points, points, "figures and page")
        page = self.write(dataset, config, out)
        report(points, points, "done")
        return page

    def write(self, dataset: xr.Dataset, config: Any, out: str | Path) -> Path:
        """Figures (PNG and SVG), tables (CSV) and the page into a folder; returns the path of the page."""
        values = {"config": config, "dataset": dataset, **self.values(dataset, config)}
        drawn, tables = self.figures(dataset, config), self.tables(dataset, config)
        return write_report(Path(out), self.name, self.template(), values, drawn, tables, embedded=self.embedded)

    def template(self) -> Path:
        """The file `page.md` beside the module of the study."""
        return Path(inspect.getfile(type(self))).with_name("page.md")


def write_report(
    out: Path,
    name: str,
    template: Path,
    values: Mapping[str, Any],
    drawn: Mapping[str, Figure],
    tables: Mapping[str, DataFrame],
    *,
    embedded: str = "svg",
) -> Path:
    """Figures (PNG and SVG), tables (CSV) and a page into a folder; returns the path of the page.

    Arguments:
        name: of the page.
        template, values: as in `write_page`; the template has the files of the figures as `images`, too.
        drawn, tables: by the names of their files.
        embedded: the format of figures on the page, "svg" or "png".
    """
    from ..figures import save

    out.mkdir(parents=True, exist_ok=True)
    for stem, frame in tables.items():
        store.write_table(frame, out / f"{stem}.csv")
    images = {}
    for stem, figure in drawn.items():
        images[stem] = next(file for file in save(figure, out / stem) if file.suffix == f".{embedded}")
    return write_page(out / f"{name}.html", template, {"images": images, **values}, images)


def legend_below(figure: Figure, **look: Any) -> Legend:
    """One legend for all panels of a figure, below them; a name that several panels have stands there once."""
    entries: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    usual = {"loc": "outside lower center", "ncols": len(entries), "frameon": False}
    return figure.legend(list(entries.values()), list(entries), **(usual | look))
