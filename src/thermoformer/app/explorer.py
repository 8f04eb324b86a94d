"""The explorer's page, a marimo notebook: its cells call the views of `learning_page` and `dynamics_page`."""

import marimo

app = marimo.App(width="full", app_title="thermoformer explorer")


@app.cell
def _():
    import marimo as mo

    from thermoformer.app import page
    from thermoformer.app.dynamics_page import DynamicsView
    from thermoformer.app.learning_page import LearningView

    return DynamicsView, LearningView, mo, page


@app.cell
def _(DynamicsView, LearningView, mo, page):
    opened = page.opening(mo.query_params())
    # Whether a view has work that ticks go on with, and clicks in the diagram, which move the slider of β.
    waits, say_waits = mo.state({})
    clicks, say_clicks = mo.state(0)
    _told = mo.query_params(), lambda name, waits: say_waits(lambda known: {**known, name: waits})
    learning = LearningView(opened.choices["Learning"], *_told)
    dynamics = DynamicsView(opened.choices["Dynamics"], *_told, lambda: say_clicks(lambda count: count + 1))
    learning_controls, dynamics_controls, span = learning.controls, dynamics.controls, dynamics.span
    return clicks, dynamics, dynamics_controls, learning, learning_controls, opened, span, waits


@app.cell
def _(mo, opened, page):
    view = mo.ui.tabs(dict.fromkeys(page.VIEWS, ""), value=opened.view)
    return (view,)


@app.cell
def _(opened, page, view):
    page.heading(view, opened.problems)
    return


@app.cell
def _(mo, page, view, waits):
    # A page that is closed or has nothing to do has no clock, and so nothing is computed for it.
    clock = mo.ui.refresh(default_interval="0.5s", options=["0.5s"]) if waits().get(view.value) else None
    page.unseen(clock)
    return (clock,)


@app.cell
def _(clicks, dynamics, span):
    # Only clicks and the range move this slider from outside: one that followed its own value would stutter.
    _moved_by = clicks(), span.value
    beta = dynamics.beta_slider()
    return (beta,)


@app.cell
def _(beta, dynamics, dynamics_controls, learning, learning_controls, mo, span, view):
    _moved_by = learning_controls.value, dynamics_controls.value, span.value
    mo.sidebar(learning.panel() if view.value == "Learning" else dynamics.panel(beta), width="20rem")
    return


@app.cell
def _(clock, learning, learning_controls, mo, view):
    _moved_by = clock
    learning_shown = view.value == "Learning"
    for _part in learning.answer(learning_controls.value) if learning_shown else ():
        mo.output.replace(_part)
    return (learning_shown,)


@app.cell
def _(learning, learning_shown, mo):
    for _part in learning.figures() if learning_shown else ():
        mo.output.replace(_part)
    return


@app.cell
def _(beta, dynamics, dynamics_controls, mo, span, view):
    _moved_by = span
    dynamics_shown = view.value == "Dynamics"
    dynamics.beta = beta.value
    for _part in dynamics.answer(dynamics_controls.value) if dynamics_shown else ():
        mo.output.replace(_part)
    return (dynamics_shown,)


@app.cell
def _(dynamics, dynamics_shown, mo):
    for _part in dynamics.figures() if dynamics_shown else ():
        mo.output.replace(_part)
    return


@app.cell
def _(clock, dynamics, dynamics_shown):
    dynamics.diagram("" if clock is None else clock.value) if dynamics_shown else None
    return


if __name__ == "__main__":
    app.run()
