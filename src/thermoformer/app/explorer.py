"""The explorer's page, a marimo notebook: cells join controls to what `learning_page` and `dynamics_page` draw."""

import marimo

app = marimo.App(width="full", app_title="thermoformer explorer")


@app.cell
def _():
    import marimo as mo

    from thermoformer.app import dynamics_page, learning_page, page

    return dynamics_page, learning_page, mo, page


@app.cell
def _(dynamics_page, learning_page, mo, page):
    opened = page.opening(mo.query_params())
    learning_pace, pace = learning_page.Pace(), dynamics_page.Pace(beta=opened.dynamics.beta)
    # Clicks in the diagram, which move the slider; one that followed its own value would stutter.
    clicks, say_clicks = mo.state(0)
    # Whether there is work that ticks should go on with.
    learning_waits, say_learning_waits = mo.state(False)
    work_waits, say_work_waits = mo.state(True)
    return (
        clicks,
        learning_pace,
        learning_waits,
        opened,
        pace,
        say_clicks,
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
    learning_places = learning_page.cards_of_page()
    return learning_controls, learning_places, learning_upload


@app.cell
def _(learning_controls, learning_page, learning_upload, mo, view):
    mo.stop(view.value != "Learning")
    mo.sidebar(learning_page.panel(learning_controls, learning_upload), width="20rem")
    return


@app.cell
def _(clock, learning_controls, learning_pace, learning_page, learning_upload, mo, page, view):
    learning = None
    if view.value == "Learning":
        _asked = learning_controls.value, learning_upload.value, learning_pace, mo.query_params()
        if (_notice := learning_page.notice(*_asked)) is not None:
            mo.output.replace(_notice)
        learning = learning_page.answer(*_asked)
    mo.vstack([learning.top, page.unseen(clock)]) if learning is not None else None
    return (learning,)


@app.cell
def _(learning, learning_pace, learning_page, learning_places, mo, say_learning_waits):
    if learning is not None:
        _waited = learning_pace.waits
        for _shown in learning_page.figures(learning, learning_pace, learning_places):
            mo.output.replace(_shown)
        # Only when it changes: the clock follows from this, and this cell from the clock.
        if learning_pace.waits != _waited:
            say_learning_waits(learning_pace.waits)
    return


@app.cell
def _(dynamics_page, opened):
    dynamics_controls = dynamics_page.controls(opened.dynamics)
    dynamics_upload = dynamics_page.upload()
    dynamics_places = dynamics_page.cards_of_page()
    span, switches = dynamics_page.span(opened.dynamics), dynamics_page.switches()
    return dynamics_controls, dynamics_places, dynamics_upload, span, switches


@app.cell
def _(clicks, dynamics_page, pace, span):
    clicks()
    beta = dynamics_page.beta_slider(span.value, pace)
    return (beta,)


@app.cell
def _(clicks, dynamics_page, pace, say_clicks):
    # A browser tells of a click in the same place again only where the figure is a new one.
    clicks()
    diagram_place = dynamics_page.diagram_card(pace, lambda: say_clicks(lambda count: count + 1))
    return (diagram_place,)


@app.cell
def _(beta, dynamics_controls, dynamics_page, dynamics_upload, mo, span, switches, view):
    mo.stop(view.value != "Dynamics")
    mo.sidebar(dynamics_page.panel(dynamics_controls, span, beta, dynamics_upload, switches), width="20rem")
    return


@app.cell
def _(beta, dynamics_controls, dynamics_page, dynamics_upload, mo, pace, say_work_waits, span, view):
    dynamics = None
    if view.value == "Dynamics":
        _asked = dynamics_controls.value, span.value, beta.value, dynamics_upload.value
        if (_notice := dynamics_page.notice(*_asked)) is not None:
            mo.output.replace(_notice)
        dynamics = dynamics_page.answer(*_asked, pace, mo.query_params())
        # The clock goes until the diagram has its line at the new β.
        if not pace.waits:
            pace.waits = True
            say_work_waits(True)
    dynamics.top if dynamics is not None else None
    return (dynamics,)


@app.cell
def _(dynamics, dynamics_page, dynamics_places):
    dynamics_page.figures(dynamics, dynamics_places) if dynamics is not None else None
    return


@app.cell
def _(learning_waits, mo, view, work_waits):
    # A page that is closed or has nothing to do has no clock, and so nothing is computed for it.
    _busy = {"Learning": learning_waits(), "Dynamics": work_waits()}
    clock = mo.ui.refresh(default_interval="0.5s", options=["0.5s"]) if _busy[view.value] else None
    return (clock,)


@app.cell
def _(
    clock,
    diagram_place,
    dynamics_controls,
    dynamics_page,
    dynamics_upload,
    mo,
    pace,
    page,
    say_work_waits,
    span,
    switches,
    view,
):
    mo.stop(view.value != "Dynamics")
    _picture, _waits = dynamics_page.diagram(
        dynamics_controls.value,
        span.value,
        dynamics_upload.value,
        switches.value,
        pace,
        clock.value if clock is not None else "",
        diagram_place,
    )
    if _waits != pace.waits:
        pace.waits = _waits
        say_work_waits(_waits)
    mo.vstack([_picture, page.unseen(clock)])
    return


if __name__ == "__main__":
    app.run()
