"""The explorer's page, a marimo notebook: cells join controls to what `learning_page` and `dynamics_page` draw."""

import marimo

app = marimo.App(width="full", app_title="thermoformer explorer")


@app.cell
def _():
    import time

    import marimo as mo

    from thermoformer.app import dynamics_page, learning_page, page

    return dynamics_page, learning_page, mo, page, time


@app.cell
def _(dynamics_page, learning_page, mo, page):
    opened = page.opening(mo.query_params())
    learning_pace, pace = learning_page.Pace(), dynamics_page.Pace()
    # Set by a click in the diagram, and by nothing else: a slider that followed its own value would stutter.
    clicked_beta, go_to_beta = mo.state(opened.dynamics.beta)
    # Whether there is work that ticks should go on with.
    learning_waits, say_learning_waits = mo.state(False)
    work_waits, say_work_waits = mo.state(True)
    return (
        clicked_beta,
        go_to_beta,
        learning_pace,
        learning_waits,
        opened,
        pace,
        say_learning_waits,
        say_work_waits,
        work_waits,
    )


@app.cell
def _(mo, opened, page):
    view = mo.ui.tabs(dict.fromkeys(page.VIEWS, ""), value=opened.view)
    return (view,)


@app.cell
def _(opened, page, view):
    page.heading(view, opened.problems)
    return


@app.cell
def _(learning_page, opened):
    learning_controls = learning_page.controls(opened.learning)
    learning_upload = learning_page.upload()
    return learning_controls, learning_upload


@app.cell
def _(clock, learning_controls, learning_pace, learning_page, learning_upload, mo, page, say_learning_waits, view):
    mo.stop(view.value != "Learning")
    _picture, _waits = learning_page.shown(learning_controls, learning_upload, learning_pace, mo.query_params())
    if _waits != learning_pace.waits:
        learning_pace.waits = _waits
        say_learning_waits(_waits)
    mo.vstack([_picture, page.unseen(clock)])
    return


@app.cell
def _(dynamics_page, opened):
    dynamics_controls = dynamics_page.controls(opened.dynamics)
    dynamics_upload = dynamics_page.upload()
    span, switches = dynamics_page.span(opened.dynamics), dynamics_page.switches()
    return dynamics_controls, dynamics_upload, span, switches


@app.cell
def _(clicked_beta, dynamics_page, pace, span):
    beta = dynamics_page.beta_slider(span.value, clicked_beta(), pace)
    return (beta,)


@app.cell
def _(beta, dynamics_controls, dynamics_page, dynamics_upload, mo, pace, span, switches, time, view):
    mo.stop(view.value != "Dynamics")
    pace.moved = time.monotonic()
    dynamics_page.shown(dynamics_controls, span, beta, dynamics_upload, switches, pace, mo.query_params())
    return


@app.cell
def _(learning_waits, mo, switches, view, work_waits):
    # A page that is closed or has nothing to do has no clock, and so nothing is computed for it.
    _busy = {"Learning": learning_waits(), "Dynamics": any(switches.value.values()) and work_waits()}
    clock = mo.ui.refresh(default_interval="0.5s", options=["0.5s"]) if _busy[view.value] else None
    return (clock,)


@app.cell
def _(
    beta,
    clock,
    dynamics_controls,
    dynamics_page,
    dynamics_upload,
    go_to_beta,
    mo,
    pace,
    page,
    say_work_waits,
    span,
    switches,
    view,
):
    mo.stop(view.value != "Dynamics")
    _tick = clock.value if clock is not None else ""
    _picture, _waits = dynamics_page.diagram(
        dynamics_controls, span, beta, dynamics_upload, switches, pace, _tick, go_to_beta
    )
    # Only when it changes: the clock follows from this, and this cell from the clock.
    if _waits != pace.waits:
        pace.waits = _waits
        say_work_waits(_waits)
    mo.vstack([_picture, page.unseen(clock)])
    return


if __name__ == "__main__":
    app.run()
